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
  // Tensors that are computed with at the same time, one behind the other: what stands before the
  // layers, a layer, what stands behind them, the module's layer.
  struct Unit {
    int layer;           // or -1
    size_t first, last;  // slots [first, last)
    int64_t begin, end;  // elements [begin, end), gaps included
    int64_t count() const { return end - begin; }
  };

  explicit ParameterLayout(const DecoderSpec& spec);
  // The layout of tensors that stand beside a model's. The model's have no place: offset() is -1.
  ParameterLayout(const DecoderSpec& spec, std::vector<TensorSpec> tensors);

  // In the order of computation.
  const std::vector<Slot>& slots() const { return slots_; }
  const std::vector<Unit>& units() const { return units_; }
  // Number of the unit that an element of the arrays belongs to.
  size_t unit_at(int64_t offset) const;
  // Elements of an array, gaps included.
  int64_t size() const { return size_; }
  // -1 when the model has no such tensor, or it is none of the layout's.
  int64_t offset(TensorRole role, int layer = -1) const;

  // Arrays of gradients are longer when the head is tied: behind the tensors stands what the head
  // adds to the embedding's gradient, as offset(TensorRole::head) says. Each use of a tensor has a
  // chain of its own (numerics 9).
  int64_t gradient_size() const { return gradient_size_; }

 private:
  void add(TensorSpec tensor);

  std::vector<Slot> slots_;
  std::vector<Unit> units_;
  int64_t size_ = 0, gradient_size_ = 0;
  std::vector<int64_t> offsets_;  // [layer + 1][role]
};

}  // namespace invar
