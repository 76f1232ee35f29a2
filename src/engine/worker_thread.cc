#include "engine/worker_thread.h"

#include <utility>

namespace invar {

WorkerThread::WorkerThread(Worker& worker, const ThreadPool* pool)
    : worker_(worker), thread_([this, pool] { serve(pool); }) {}

WorkerThread::~WorkerThread() {
  const std::lock_guard lock(mutex_);
  stops_ = true;
  is_told_.notify_one();
}

void WorkerThread::post(Job job) {
  const std::lock_guard lock(mutex_);
  if (is_over_) return;
  jobs_.push_back(std::move(job));
  is_told_.notify_one();
}

std::exception_ptr WorkerThread::wait() {
  std::unique_lock lock(mutex_);
  is_idle_.wait(lock, [&] { return !is_at_work_ && jobs_.empty() && is_over_ == has_left_; });
  return failure_;
}

void WorkerThread::abandon() {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  is_told_.notify_one();
}

void WorkerThread::recover() {
  const std::lock_guard lock(mutex_);
  is_over_ = has_left_ = false;
  failure_ = nullptr;
}

void WorkerThread::serve(const ThreadPool* pool) {
  if (pool) pool->pin_caller();
  std::unique_lock lock(mutex_);
  while (true) {
    is_told_.wait(lock, [&] { return stops_ || !jobs_.empty() || is_over_ != has_left_; });
    if (stops_) return;
    if (is_over_)
      leave(lock);
    else
      run_next(lock);
    if (jobs_.empty() && is_over_ == has_left_) is_idle_.notify_all();
  }
}

void WorkerThread::run_next(std::unique_lock<std::mutex>& lock) {
  const Job job = std::move(jobs_.front());
  jobs_.pop_front();
  is_at_work_ = true;
  lock.unlock();
  std::exception_ptr failure;
  try {
    job(worker_);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  is_at_work_ = false;
  if (!failure) return;
  failure_ = failure;
  is_over_ = true;
}

void WorkerThread::leave(std::unique_lock<std::mutex>& lock) {
  jobs_.clear();
  if (has_left_) return;
  is_at_work_ = true;
  lock.unlock();
  worker_.leave();
  lock.lock();
  is_at_work_ = false;
  has_left_ = true;
}

}  // namespace invar
