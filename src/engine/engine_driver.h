// Turns at an engine that several threads use: one thread at a time computes its next step, or does
// something else between two. Callers of the library take turns, as decision 10 has it; the
// rollouts of RL are alone.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>

#include "engine/engine.h"

namespace invar {

// A lock that is given in the order in which it was asked for, so that a thread that steps in a
// loop does not keep others out.
class FairMutex {
 public:
  void lock();
  void unlock();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0, served_ = 0;
};

class EngineDriver {
 public:
  // The engine outlives it.
  explicit EngineDriver(Engine& engine) : engine_(engine) {}

  // Calls `task` with the engine while no step is computed.
  template <typename Task>
  auto between_steps(Task task) {
    const std::lock_guard turn(turns_);
    return task(engine_);
  }
  // One step, told to `sink`. False when there was nothing to do.
  bool step(OutputSink& sink) {
    return between_steps([&](Engine& engine) { return engine.step(sink); });
  }
  // Steps until there is nothing to do, and calls `on_step` after each, in the same turn: it must
  // not ask for another.
  void run(OutputSink& sink, const std::function<void(const StepStats&)>& on_step = {});

 private:
  FairMutex turns_;  // guards what follows
  Engine& engine_;
};

}  // namespace invar
