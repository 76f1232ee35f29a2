// Where each tensor of a decoder stands in a flat array of f32: gradients, master weights and
// optimizer state all have this layout.
#pragma once

#include <cstdint>
#include <vector>

#include "model/families/tensors.h"

namespace invar {

class ParameterLayout {
 public:
  struct Slot {
    TensorSpec tensor;
    int64_t offset, count;  // elements; offsets are multiples of 16
  };

  explicit ParameterLayout(const DecoderSpec& spec);

  // In the order of computation.
  const std::vector<Slot>& slots() const { return slots_; }
  // Elements of an array, gaps included.
  int64_t size() const { return size_; }
  // -1 when the model has no such tensor.
  int64_t offset(TensorRole role, int layer = -1) const;

  // Arrays of gradients are longer when the head is tied: behind the tensors stands what the head
  // adds to the embedding's gradient, as offset(TensorRole::head) says. Each use of a tensor has a
  // chain of its own (numerics 9).
  int64_t gradient_size() const { return gradient_size_; }

 private:
  std::vector<Slot> slots_;
  int64_t size_ = 0, gradient_size_ = 0;
  std::vector<int64_t> offsets_;  // [layer + 1][role]
};

}  // namespace invar
