#include "engine/engine_driver.h"

namespace invar {

void FairMutex::lock() {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = next_++;
  changed_.wait(lock, [&] { return served_ == ticket; });
}

void FairMutex::unlock() {
  {
    const std::lock_guard lock(mutex_);
    ++served_;
  }
  changed_.notify_all();
}

void EngineDriver::run(OutputSink& sink, const std::function<void(const StepStats&)>& on_step) {
  const auto steps = [&](Engine& engine) {
    if (!engine.step(sink)) return false;
    if (on_step) on_step(engine.last_step());
    return true;
  };
  while (between_steps(steps)) {
  }
}

}  // namespace invar
