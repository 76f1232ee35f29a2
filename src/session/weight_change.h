// Tensors of a caller's that are to stand for a model's, checked before any of them is taken.
#pragma once

#include <string>

#include "engine/model.h"
#include "session/changed_weights.h"

namespace invar {

struct GivenTensor {
  std::string name;
  TensorInfo info;
  const std::byte* data = nullptr;
  int gpu = -1;  // that has it in its memory; -1: the host
};

class WeightChange {
 public:
  // Both outlive it.
  WeightChange(const TensorSource& loaded, Model& model) : loaded_(loaded), model_(model) {}

  // Throws UsageError unless it can stand for the one of that name that was loaded. A matrix in the
  // memory of the model's GPU stays there, and outlives this; the rest is small, and copied.
  void add(const GivenTensor& tensor);
  // Where weights on a GPU change there is no copy to go back to: all is looked at before. Throws
  // Error for the first NaN or infinity.
  void expect_finite() const;
  ChangedWeights over_loaded() const { return {loaded_, here, on_gpu, model_.device()}; }

  UpdatedTensors here;
  GpuTensors on_gpu;

 private:
  void check(const GivenTensor& tensor) const;

  const TensorSource& loaded_;
  Model& model_;
};

}  // namespace invar
