// A log of the engine's last steps, for GET /v1/engine/steps and /metrics.
#pragma once

#include <deque>
#include <mutex>

#include "backend.h"
#include "base/json.h"
#include "histogram.h"

namespace invar::server {

// Sums over all steps since the start.
struct StepTotals {
  int64_t decode_rows = 0, prompt_rows = 0, draft_rows = 0, accepted = 0;
  double device_idle_seconds = 0;  // of a GPU, between two steps
  int64_t stalls = 0;  // rows that answers did not get: one for each that a step passed over
  Histogram rows = Histogram(kRowBounds), seconds = Histogram(kStepBounds);

  static const std::vector<double> kRowBounds, kStepBounds;
};

// Safe from every thread.
class StepLog {
 public:
  void add(const StepRecord& step);
  StepTotals totals() const;

  // The last step's number (the first is 1), the names of a step's numbers, and the steps after
  // number `after` that are still known.
  json::Value after(int64_t number) const;

 private:
  static constexpr size_t kKept = 4096;

  mutable std::mutex mutex_;  // guards what follows
  std::deque<StepRecord> steps_;
  int64_t last_ = 0;
  StepTotals totals_;
};

// The last values of a kind, for quantiles of now. Used by one thread.
class RecentValues {
 public:
  void add(double value);
  // {"count", "p50", "p90", "p99"}; the quantiles are null where there is no value.
  json::Value summary() const;

 private:
  static constexpr size_t kKept = 2048;
  std::vector<double> values_;  // a ring
  size_t next_ = 0;
};

}  // namespace invar::server
