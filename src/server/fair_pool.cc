#include "fair_pool.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>

namespace invar::server {

namespace {

using Clock = std::chrono::steady_clock;

void run_told(const std::function<void()>& task) {
  try {
    task();
  } catch (const std::exception& error) {
    fmt::print(stderr, "invar: error: a task of the pool failed: {}\n", error.what());
  }
}

// Puts this thread behind those that compute and serve, where there are too few cores.
void yield_to_others() {
  constexpr int kNice = 5;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
}

}  // namespace

FairPool::FairPool() {
  for (size_t i = 0; i < kQuickThreads; ++i) threads_.emplace_back([this] { run(quick_); });
  for (size_t i = 0; i < kSlowThreads; ++i)
    threads_.emplace_back([this] {
      yield_to_others();
      run(slow_);
    });
}

FairPool::~FairPool() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    wake_all();
  }
  threads_.clear();
}

void FairPool::push(Task task, std::function<void()> run) {
  Lane& one = lane(task.kind);
  one.queue.push({std::move(task.owner), std::move(run), task.bytes > kBig});
  one.woken.notify_one();
}

void FairPool::post(Task task, std::function<void()> run) {
  const std::lock_guard lock(mutex_);
  push(std::move(task), std::move(run));
}

bool FairPool::offer(Task task, std::function<void()> run) {
  const std::lock_guard lock(mutex_);
  if (lane(task.kind).queue.waiting(task.owner) >= kMostWaiting) return false;
  push(std::move(task), std::move(run));
  return true;
}

size_t FairPool::owners() const {
  const std::lock_guard lock(mutex_);
  return quick_.queue.owners() + slow_.queue.owners();
}

// A task that runs may still give others.
bool FairPool::is_over() const {
  const auto is_idle = [](const Lane& one) {
    return one.queue.waiting() + one.queue.running() == 0;
  };
  return is_ending_ && is_idle(quick_) && is_idle(slow_);
}

void FairPool::wake_all() {
  quick_.woken.notify_all();
  slow_.woken.notify_all();
}

void FairPool::run(Lane& lane) {
  std::unique_lock lock(mutex_);
  while (true) {
    auto next = lane.queue.pop();
    if (!next && is_over()) return wake_all();
    if (!next) {
      lane.woken.wait(lock);
      continue;
    }
    lock.unlock();
    const auto begin = Clock::now();
    run_told(next->run);
    next->run = nullptr;  // what it holds goes before the owner's next task
    const std::chrono::nanoseconds took = Clock::now() - begin;
    lock.lock();
    lane.queue.end(*next, took.count());
    // One that was to wait for this one may run now.
    if (lane.queue.waiting() > 0) lane.woken.notify_one();
  }
}

}  // namespace invar::server
