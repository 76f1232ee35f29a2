#include "engine/workers.h"

#include <algorithm>
#include <optional>

namespace invar {

namespace {

std::string said_by(const std::exception_ptr& why) {
  try {
    std::rethrow_exception(why);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "something that says nothing";
  }
}

}  // namespace

WorkerFailed::WorkerFailed(std::exception_ptr why) : Error(said_by(why)), why_(std::move(why)) {}

std::unique_lock<std::mutex> Workers::lock_when_all_ran() {
  std::unique_lock lock(mutex_);
  all_ran_.wait(lock, [&] { return told_.empty(); });
  return lock;
}

int32_t Workers::make_runner(const RunnerLimits& limits, int32_t keys_of, ThreadPool* threads) {
  const std::unique_lock lock = lock_when_all_ran();
  const MakeRunner message{.runner = ++last_runner_, .keys_of = keys_of, .limits = limits};
  try {
    order(message, [&](Worker& worker) {
      worker.make_runner(message, are_all_the_callers() ? threads : nullptr);
    });
  } catch (...) {
    order_end(message.runner);  // some have made it
    throw;
  }
  runners_[message.runner] = message;
  return message.runner;
}

void Workers::end_runner(int32_t number) {
  const std::unique_lock lock = lock_when_all_ran();
  runners_.erase(number);
  order_end(number);
}

void Workers::order_end(int32_t number) {
  try {
    order(EndRunner{number}, [&](Worker& worker) { worker.end_runner(number); });
  } catch (const Error&) {  // of one that is gone: nothing is left to be given back
  }
}

void Workers::take_weights(const TakeWeights& message, const TensorSource& source) {
  const std::unique_lock lock = lock_when_all_ran();
  order(message, [&](Worker& worker) { worker.take_weights(source); });
}

void Workers::give_memory(const GiveMemory& message) {
  const std::unique_lock lock = lock_when_all_ran();
  order(message, [&](Worker& worker) { worker.give_memory(message); });
}

void Workers::take_memory(const TakeMemory& message) {
  const std::unique_lock lock = lock_when_all_ran();
  order(message, [&](Worker& worker) { worker.take_memory(message); });
}

void Workers::step(const WorkerMessage& message, AsWorker work, const int32_t* sampled) {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!are_all_the_callers() || here().size() > 1) {
    lock.lock();
    sampled_ = sampled;
  }
  try {
    run(message, work);
  } catch (...) {
    told_.clear();  // nobody runs them
    all_ran_.notify_all();
    throw WorkerFailed(std::current_exception());
  }
  if (runs_ahead() && told_.empty()) all_ran_.notify_all();
}

bool Workers::tell(const WorkerMessage& message) {
  const std::lock_guard lock(mutex_);
  if (!runs_ahead() || runners_.size() > 1) return false;
  try {
    return send_ahead(message);
  } catch (...) {
    told_.clear();
    all_ran_.notify_all();
    throw WorkerFailed(std::current_exception());
  }
}

void Workers::expect_whole() {
  try {
    home().links().group->expect_whole();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    give_up(std::current_exception());
    throw WorkerFailed(std::current_exception());
  }
}

void Workers::recover(int64_t generation) {
  const std::lock_guard lock(mutex_);
  if (generation != generation_) return;
  restart();
  for (const auto& [number, message] : runners_) order(message, [](Worker&) {});
  ++generation_;
}

Launch launch_of(const ModelOptions& options) {
  const std::string executor = options.settled_executor();
  if (executor == "threads") return launch_threads();
  if (executor == "mp" || executor == "mp-sockets") return launch_processes();
  if (executor == "mpi") return launch_mpi();
  if (executor == "hosts") return launch_hosts();
  fail_usage("expected an executor of threads, mp, mp-sockets, mpi or hosts, found \"{}\"",
             executor);
}

}  // namespace invar
