#include "step_watch.h"

#include <algorithm>

namespace invar::server {

namespace {

int64_t nanoseconds(std::chrono::steady_clock::duration time) {
  return int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()};
}

}  // namespace

void StepWatch::on_start(int64_t request, int32_t cached) {
  sink_->on_begun(
      {request, nanoseconds(std::chrono::steady_clock::now().time_since_epoch()), cached});
}

bool StepWatch::step(BackendSink& sink) {
  const Time begin = std::chrono::steady_clock::now();
  const auto begun = static_cast<int32_t>(streams_.size());
  sink_ = &sink;
  widest_gap_ = {};
  if (!engine_.step(*this)) return false;
  const Time end = std::chrono::steady_clock::now();
  const StepStats& stats = engine_.last_step();
  // With two steps in flight a GPU's step began before this call, or waited in it for another one.
  const auto of_device = static_cast<int64_t>(1e9 * stats.device_seconds);
  // While there were no requests nobody missed the device.
  const auto idle = had_work_ ? static_cast<int64_t>(1e9 * stats.device_idle_seconds) : int64_t{0};
  had_work_ = engine_.has_work();
  sink.on_step({.end_ns = nanoseconds(end.time_since_epoch()),
                .ns = of_device > 0 ? of_device : nanoseconds(end - begin),
                .device_idle_ns = idle,
                .engine = replica_,
                .decode_rows = stats.work.decode_rows,
                .prompt_rows = stats.work.prompt_rows,
                .draft_rows = stats.draft_tokens,
                .accepted = stats.accepted_tokens,
                .stalled = std::max(0, begun - stats.work.decode_rows),
                .widest_gap_us = static_cast<int32_t>(widest_gap_.count() / 1000),
                .running = engine_.num_running(),
                .waiting = engine_.num_waiting(),
                .used_blocks = engine_.num_blocks() - engine_.free_blocks(),
                .preempted = stats.preempted,
                .tokens = stats.samples});
  return true;
}

void StepWatch::on_token(const TokenOutput& output) {
  const Time now = std::chrono::steady_clock::now();
  const bool goes_on = output.finish == FinishReason::none;
  if (const auto found = streams_.find(output.request); found != streams_.end()) {
    widest_gap_ = std::max(widest_gap_, std::chrono::nanoseconds(now - found->second));
    found->second = now;
    if (!goes_on) streams_.erase(found);
  } else if (goes_on) {
    streams_.emplace(output.request, now);
  }
  sink_->on_token(output);
}

}  // namespace invar::server
