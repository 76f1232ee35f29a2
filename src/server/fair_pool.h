// The threads for what takes longer than the serving thread may be kept: bodies, templates,
// tokenizing, the journal, forms of answers.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fair_queue.h"

namespace invar::server {

// A large body or line of the journal is a slow task, behind which nothing small waits.
inline bool is_large(int64_t bytes) {
  constexpr int64_t kLarge = 64 << 10;
  return bytes > kLarge;
}

// Tasks that a bounded number of bytes keeps short are quick, all others are slow. Each kind has
// threads of its own, so that one is always free of slow tasks. Within each kind the owners have
// equal shares of the time (FairQueue), and a slow thread at least is free of any owner's tasks.
class FairPool {
 public:
  enum class Kind { quick, slow };
  // The server itself where there are owners.
  static constexpr const char* kServer = "server";
  struct Task {
    Kind kind = Kind::quick;
    std::string owner;  // a key's digest, or anything else that names whose task it is
    size_t bytes = 0;   // that are read: of those with more than kBig one runs at a time
  };
  // The kind of a task by the bytes that a client has sent, or that are kept for one.
  static Task reading(std::string owner, size_t bytes) {
    return {is_large(static_cast<int64_t>(bytes)) ? Kind::slow : Kind::quick, std::move(owner),
            bytes};
  }

  FairPool();
  // Runs what was given so far, and what that gives, then ends.
  ~FairPool();
  FairPool(const FairPool&) = delete;
  FairPool& operator=(const FairPool&) = delete;

  // From any thread. A task that throws is reported on stderr.
  void post(Task task, std::function<void()> run);
  // The same unless kMostWaiting tasks of the owner wait already: false.
  bool offer(Task task, std::function<void()> run);
  // Owners that have something to do.
  size_t owners() const;

  static constexpr size_t kQuickThreads = 1, kSlowThreads = 3, kMostWaiting = 512;
  static constexpr size_t kBig = 1 << 20;

 private:
  struct Lane {
    explicit Lane(size_t most_running) : queue(most_running) {}
    FairQueue queue;
    std::condition_variable woken;
  };
  Lane& lane(Kind kind) { return kind == Kind::quick ? quick_ : slow_; }
  bool is_over() const;
  void push(Task task, std::function<void()> run);
  void run(Lane& lane);
  void wake_all();

  mutable std::mutex mutex_;  // guards what follows
  Lane quick_{kQuickThreads}, slow_{kSlowThreads - 1};
  bool is_ending_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace invar::server
