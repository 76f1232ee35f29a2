#include "engine/step_budget.h"

#include <algorithm>
#include <numeric>

#include "base/timer.h"

namespace invar {

namespace {

constexpr int kLeastRows = 32;  // a leaf of the attention: fewer rows waste a step
// The prompts' share of the target; the rest is for the other rows of a step, and for noise.
constexpr double kShareOfPrompts = 0.8;

// Rows `slots - rows` and on of one sequence. The contents of its blocks do not matter.
Batch batch_of(int rows, int slots, int block_size) {
  Batch batch;
  batch.sequences.resize(1);
  batch.sequences[0].cell = 0;
  batch.sequences[0].blocks.resize((slots + block_size - 1) / block_size);
  std::iota(batch.sequences[0].blocks.begin(), batch.sequences[0].blocks.end(), 0);
  for (int i = 0; i < rows; ++i)
    batch.rows.push_back({.token = 0, .position = slots - rows + i, .sequence = 0});
  batch.logit_rows = {rows - 1};
  return batch;
}

}  // namespace

int rows_within(double target, int most, FunctionRef<double(int)> seconds_of, double enough) {
  const double wanted = target * kShareOfPrompts;
  int rows = std::min(kLeastRows, most), fewer = 0;
  double seconds = std::min(seconds_of(rows), seconds_of(rows)), before = 0;
  while (seconds < target * enough && rows < most) {
    fewer = std::exchange(rows, std::min(2 * rows, most));
    before = std::exchange(seconds, std::min(seconds_of(rows), seconds_of(rows)));
  }
  const double per_row = std::max(seconds - before, 1e-9) / (rows - fewer);
  const double fits = rows + (wanted - seconds) / per_row;
  const int whole = static_cast<int>(std::min<double>(fits, most)) / kLeastRows * kLeastRows;
  return std::clamp(whole, std::min(kLeastRows, most), most);
}

int rows_within(double target, int most, int slots, Model& model, ThreadPool* threads) {
  constexpr int kBlockSize = 64;
  most = std::min(most, slots);
  const RunnerLimits limits = {.blocks = (slots + kBlockSize - 1) / kBlockSize,
                               .block_size = kBlockSize,
                               .max_rows = most,
                               .max_logit_rows = 1};
  Executor executor(model, limits, threads);
  ForwardIo io;
  executor.run(batch_of(1, slots, kBlockSize), io);  // its tables are filled, its memory is there
  const auto seconds_of = [&](int rows) {
    const Batch batch = batch_of(rows, slots, kBlockSize);
    const Timer timer;
    executor.run(batch, io);
    return timer.seconds();
  };
  return model.device().is_host() ? rows_within(target, most, seconds_of)
                                  : rows_within(target, most, seconds_of, kShareOfPrompts);
}

}  // namespace invar
