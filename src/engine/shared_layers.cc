#include "engine/shared_layers.h"

#include <algorithm>

#include "base/check.h"

namespace invar {

void SharedLayers::begin(int64_t rows) {
  is_computed_.assign(static_cast<size_t>(rows), false);
  hidden_.resize(static_cast<size_t>(rows * width_));
}

void SharedLayers::take(int64_t request, const Batch& batch, size_t first, size_t count) {
  const ComputedRows computed = drafter_.computed_rows(request);
  const auto width = static_cast<size_t>(width_);
  const size_t rows = std::min(count, computed.hidden.size() / width);
  if (rows == 0) return;
  CHECK(batch.rows[first].position == computed.position, "rows of another step");
  std::ranges::copy(computed.hidden.first(rows * width),
                    hidden_.begin() + static_cast<int64_t>(first * width));
  std::fill_n(is_computed_.begin() + static_cast<int64_t>(first), rows, true);
}

void SharedLayers::run(Executor& executor, const Batch& batch, ForwardIo& io) {
  const bool has_some = std::ranges::find(is_computed_, true) != is_computed_.end();
  const bool wants_early = !batch.aux_layers.empty() && batch.aux_layers.front() < layers_;
  if (!has_some || wants_early || !run_first_layers(executor, batch, io.times))
    return executor.run(batch, io);
  part_ = batch;
  part_.layer_begin = layers_;
  part_.features.swap(hidden_);
  for (size_t row = 0; row < part_.rows.size(); ++row)
    part_.rows[row].features = static_cast<int32_t>(row);
  executor.run(part_, io);
}

// Runs the first layers of the rows that the drafter has not computed. False when something was not
// finite: then all rows are computed, and each of them is told what it finds.
bool SharedLayers::run_first_layers(Executor& executor, const Batch& batch, OperationTimes* times) {
  part_ = batch;
  part_.layer_end = layers_;
  part_.logit_rows.clear();
  part_.aux_layers.clear();
  part_.rows.clear();
  for (size_t row = 0; row < batch.rows.size(); ++row)
    if (!is_computed_[row]) part_.rows.push_back(batch.rows[row]);
  if (part_.rows.empty()) return true;
  ForwardIo io{.times = times};
  executor.run(part_, io);
  if (std::ranges::find(io.non_finite, true) != io.non_finite.end()) return false;
  const float* from = io.hidden.data();
  for (size_t row = 0; row < batch.rows.size(); ++row)
    if (!is_computed_[row]) {
      std::copy_n(from, width_, hidden_.begin() + static_cast<int64_t>(row) * width_);
      from += width_;
    }
  return true;
}

}  // namespace invar
