// A worker that a thread of its own plays: it does what it is told, one thing after another, while
// who tells it goes on.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/worker.h"

namespace invar {

class WorkerThread {
 public:
  using Job = std::function<void(Worker&)>;

  // `pool`: whose first core the thread takes; null: any.
  WorkerThread(Worker& worker, const ThreadPool* pool);
  // Drops what was not begun. REQUIRES: nothing that was begun waits for ever (abandon).
  ~WorkerThread();

  // Runs the job behind those that were posted before. Jobs that are posted after one has thrown
  // are dropped.
  void post(Job job);
  // Until it has nothing to do. Returns what a job has thrown, or null.
  std::exception_ptr wait();
  // Drops what was not begun. The worker leaves, as after a job that throws, and who waits for it
  // hears of that.
  void abandon();
  // After that, and after wait(): it takes jobs again.
  void recover();

 private:
  void serve(const ThreadPool* pool);
  void run_next(std::unique_lock<std::mutex>& lock);
  void leave(std::unique_lock<std::mutex>& lock);

  Worker& worker_;
  std::mutex mutex_;
  std::condition_variable is_told_, is_idle_;
  std::deque<Job> jobs_;
  bool is_at_work_ = false, is_over_ = false, has_left_ = false, stops_ = false;
  std::exception_ptr failure_;
  std::jthread thread_;  // ends before the others do
};

}  // namespace invar
