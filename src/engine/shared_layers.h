// Verification that goes on from a drafter which has run the target's first layers itself, on the
// target's own keys and values (method early_exit): those layers are run for the rows that were not
// drafted, the others for all. A row of a chain is a decode, so that the bits are the same.
#pragma once

#include <vector>

#include "engine/executor.h"
#include "speculative/proposer.h"

namespace invar {

class SharedLayers {
 public:
  // `width`: of the target's hidden states. The drafter lives as long.
  SharedLayers(const LayerSharer& drafter, int width)
      : drafter_(drafter), layers_(drafter.shared_layers()), width_(width) {}

  // A step of so many rows begins.
  void begin(int64_t rows);
  // Takes the rows that the drafter has computed for a request: the `count` rows from `first` on,
  // which are its last known token and its drafts.
  void take(int64_t request, const Batch& batch, size_t first, size_t count);
  // The batch as the executor would run it.
  void run(Executor& executor, const Batch& batch, ForwardIo& io);

 private:
  bool run_first_layers(Executor& executor, const Batch& batch, OperationTimes* times);

  const LayerSharer& drafter_;
  const int layers_, width_;
  std::vector<char> is_computed_;  // by row
  std::vector<float> hidden_;      // [rows][width], behind the shared layers
  Batch part_;
};

}  // namespace invar
