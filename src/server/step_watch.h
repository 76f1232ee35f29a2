// Watches an engine's steps: how long each took, what it computed, and whom it made wait.
#pragma once

#include <chrono>
#include <unordered_map>

#include "backend.h"
#include "engine/engine.h"

namespace invar::server {

class StepWatch final : private OutputSink {
 public:
  // The engine outlives it.
  StepWatch(Engine& engine, int32_t replica) : engine_(engine), replica_(replica) {}

  // One step of the engine, told to `sink` with everything that it answers. False when there was
  // nothing to do.
  bool step(BackendSink& sink);
  // The request was cancelled: it waits for no more tokens.
  void forget(int64_t request) { streams_.erase(request); }

 private:
  using Time = std::chrono::steady_clock::time_point;

  void on_start(int64_t request, int32_t cached) override;
  void on_token(const TokenOutput& output) override;
  void on_prompt(const PromptOutput& output) override { sink_->on_prompt(output); }
  void on_pooled(const PooledOutput& output) override { sink_->on_pooled(output); }

  Engine& engine_;
  const int32_t replica_;
  BackendSink* sink_ = nullptr;                // during a step
  std::unordered_map<int64_t, Time> streams_;  // requests that have begun; their last token
  std::chrono::nanoseconds widest_gap_{0};     // of the current step
  bool had_work_ = false;                      // requests were left behind the last step
};

}  // namespace invar::server
