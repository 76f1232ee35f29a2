// Tasks of several owners: no task waits behind all those of another owner.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace invar::server {

// Fair queueing: the next task is of the owner that has had the least work since it had something
// to do; those of one owner come in the order in which they were given. An owner without tasks is
// forgotten. One that comes anew begins where the others are, so that nobody saves turns up.
// Start-time fair queueing, Goyal et al. (SIGCOMM 1996), with the work that a task took instead of
// one that is said before. For one thread at a time.
class FairQueue {
 public:
  struct Task {
    std::string owner;
    std::function<void()> run;
    bool is_big = false;  // of these one runs at a time, whoever owns it: they take much memory
  };
  // `most_running`: tasks of one owner at the same time.
  explicit FairQueue(size_t most_running) : most_running_(most_running) {}

  void push(Task task);
  // The next task; nothing where none may run now.
  std::optional<Task> pop();
  // A task that was popped has taken so much work.
  void end(const Task& task, int64_t work);

  size_t waiting(const std::string& owner) const;
  size_t waiting() const { return waiting_; }
  size_t running() const { return running_; }
  size_t owners() const { return owners_.size(); }

 private:
  struct Owner {
    std::deque<Task> tasks;
    size_t running = 0;
    int64_t taken = 0;
    uint64_t since = 0;  // of two with as much work the one that came first
  };

  const size_t most_running_;
  std::unordered_map<std::string, Owner> owners_;
  size_t waiting_ = 0, running_ = 0;
  bool big_runs_ = false;
  int64_t now_ = 0;  // the work of the owner whose task was taken last
  uint64_t arrivals_ = 0;
};

}  // namespace invar::server
