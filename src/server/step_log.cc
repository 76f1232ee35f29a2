#include "step_log.h"

#include <algorithm>
#include <cmath>

namespace invar::server {

// vLLM's, of its iteration_tokens_total.
const std::vector<double> StepTotals::kRowBounds = {1,   8,    16,   32,   64,   128,  256,
                                                    512, 1024, 2048, 4096, 8192, 16384};
const std::vector<double> StepTotals::kStepBounds = {.001, .0025, .005, .01, .025, .05, .1,
                                                     .25,  .5,    1,    2.5, 5,    10};

void StepLog::add(const StepRecord& step) {
  const std::lock_guard lock(mutex_);
  ++last_;
  if (steps_.size() == kKept) steps_.pop_front();
  steps_.push_back(step);
  totals_.decode_rows += step.decode_rows;
  totals_.prompt_rows += step.prompt_rows;
  totals_.draft_rows += step.draft_rows;
  totals_.accepted += step.accepted;
  totals_.stalls += step.stalled;
  totals_.device_idle_seconds += static_cast<double>(step.device_idle_ns) * 1e-9;
  totals_.rows.add(step.decode_rows + step.prompt_rows + step.draft_rows);
  totals_.seconds.add(static_cast<double>(step.ns) * 1e-9);
}

StepTotals StepLog::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

json::Value StepLog::after(int64_t number) const {
  // Milliseconds to three digits: a page draws them.
  const auto ms = [](double ns) { return std::round(ns * 1e-3) * 1e-3; };
  const std::lock_guard lock(mutex_);
  const int64_t first = last_ - std::ssize(steps_) + 1;  // the number of the oldest that is known
  json::Array rows;
  for (int64_t n = std::max(first, std::min(number, last_) + 1); n <= last_; ++n) {
    const StepRecord& s = steps_[static_cast<size_t>(n - first)];
    rows.push_back(json::Array{n, ms(static_cast<double>(s.end_ns)), ms(static_cast<double>(s.ns)),
                               s.decode_rows, s.prompt_rows, s.draft_rows, s.stalled,
                               ms(s.widest_gap_us * 1e3), s.running, s.waiting, s.used_blocks,
                               s.preempted, s.engine, s.accepted, s.tokens});
  }
  return json::Object{
      {"last", last_},
      {"columns", json::Array{"number", "end_ms", "ms", "decode_rows", "prompt_rows", "draft_rows",
                              "stalled", "widest_gap_ms", "running", "waiting", "used_blocks",
                              "preempted", "engine", "accepted", "tokens"}},
      {"steps", std::move(rows)}};
}

void RecentValues::add(double value) {
  if (values_.size() < kKept) return values_.push_back(value);
  values_[next_] = value;
  next_ = (next_ + 1) % kKept;
}

json::Value RecentValues::summary() const {
  std::vector<double> sorted = values_;
  std::ranges::sort(sorted);
  const auto quantile = [&](double q) {
    if (sorted.empty()) return json::Value();
    const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(sorted.size())));
    return json::Value(sorted[std::max<size_t>(rank, 1) - 1]);
  };
  return json::Object{{"count", static_cast<int64_t>(sorted.size())},
                      {"p50", quantile(0.5)},
                      {"p90", quantile(0.9)},
                      {"p99", quantile(0.99)}};
}

}  // namespace invar::server
