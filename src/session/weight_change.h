// Tensors of a caller's that are to stand for a model's, checked before any of them is taken.
#pragma once

#include <span>
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
  WeightChange(const TensorSource& in_use, Model& model) : in_use_(in_use), model_(model) {}

  // All of a change. Throws UsageError unless each can stand for the one of its name. A matrix in
  // the memory of the model's GPU stays there, and outlives this; the rest is small, and copied.
  // The head of a model whose head is its embedding may come beside it, and has its bits.
  void add(std::span<const GivenTensor> tensors);
  // Where weights on a GPU change there is no copy to go back to: all is looked at before. Throws
  // Error for the first NaN or infinity.
  void expect_finite() const;
  ChangedWeights over_those_in_use() const { return {in_use_, here, on_gpu, model_.device()}; }

  UpdatedTensors here;
  GpuTensors on_gpu;

 private:
  bool is_tied_head(const GivenTensor& tensor) const;
  void check(const GivenTensor& tensor) const;
  void add(const GivenTensor& tensor);
  void expect_embedding(const GivenTensor& head) const;

  const TensorSource& in_use_;
  Model& model_;
};

}  // namespace invar
