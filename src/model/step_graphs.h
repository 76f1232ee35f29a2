// The operations of steps, recorded as graphs of a device and launched as a whole: a step of few
// rows is over before the host has launched hundreds of kernels one by one.
#pragma once

#include <memory>
#include <vector>

#include "base/function_ref.h"
#include "device/stream.h"
#include "model/adapter_step.h"
#include "model/step_tables.h"

namespace invar {

// All that a recorded step depends on beside what lies in memory: steps of equal shapes are the
// same kernels over the same addresses.
struct StepShape {
  int64_t rows = 0, logit_rows = 0;
  int32_t layer_begin = 0, layer_end = 0;
  std::vector<int32_t> skipped_layers;
  bool has_nan_flags = false;  // of layers before: they are not cleared
  bool fuses_features = false;
  std::vector<int32_t> aux_layers = {};
  StepTables tables;
  AdapterShape adapters = {};
  bool operator==(const StepShape&) const = default;
};

class StepGraphs {
 public:
  static constexpr int64_t kMostRows = 256;  // of more, the kernels take longer than their launches

  // Does a step whose tables are prepared: `work` puts its operations into the stream. A shape that
  // comes for the second time is recorded, from then on its graph is launched.
  void launch(const StepShape& shape, Stream& stream, FunctionRef<void()> work);
  // How many steps were launched as graphs.
  int64_t launched() const { return launched_; }

 private:
  static constexpr size_t kMostShapes = 64;  // the one not used for longest goes

  struct Entry {
    StepShape shape;
    int64_t used = 0;
    std::unique_ptr<Graph> graph;  // null: seen once
  };

  std::vector<Entry> entries_;
  int64_t steps_ = 0, launched_ = 0;
};

}  // namespace invar
