// One thread that runs tasks in the order in which they were given.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace invar::server {

class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  // Runs what was given so far, then ends.
  ~Worker() {
    post(nullptr);
    thread_.join();
  }

  // From any thread. Tasks do not throw.
  void post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    woken_.notify_one();
  }

 private:
  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      woken_.wait(lock, [this] { return !tasks_.empty(); });
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      if (!task) return;
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
};

}  // namespace invar::server
