// A part's tensors: names, shapes, how ranks share them, and where they go among its weights. Code
// that checks, loads, transposes or counts tensors visits them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/matrix.h"
#include "model/tensor_role.h"

namespace invar {

// An axis of a tensor, and the elements of it that a rank has.
struct TensorAxis {
  int64_t size = 0;
  int64_t first = 0, count = 0;
};
constexpr TensorAxis whole(int64_t size) {
  return {size, 0, size};
}
// One rank's share of `size` elements in equal shares.
constexpr TensorAxis shared(int64_t size, int rank, int ranks) {
  return {size, rank * (size / ranks), size / ranks};
}

struct TensorRow {
  TensorRole role;
  std::string name;  // behind "model.layers.N."; {} stands for an expert's or a head's number
  TensorAxis rows, columns;  // columns of size 0: a vector
};

// There is a tensor of each expert, head or tap: `count` in all, and those of some numbers are
// here.
struct Each {
  int count;
  std::vector<int32_t> here;
};

struct MatrixForm {
  // The outputs of the two tensors take turns, panel by panel; else they stand one after the other.
  bool is_pair = false;
  // Where it is stored as integers or e4m3 numbers, its products are those of such numbers
  // (numerics 2.1); of other tensors the bf16 elements are computed with that these stand for.
  bool takes_quantised = false;
  bool is_twin = false;  // what is stored in blocks is never multiplied as such (numerics 2.3)
  // Where matrices go whose tensors are stored otherwise than the first one, in their order, if
  // these may be products of their own (numerics 2.3: each is multiplied as what it is); or null.
  std::vector<Matrix>* others = nullptr;
  const Each* each = nullptr;  // the matrix is a stack
};

class TensorVisitor {
 public:
  virtual ~TensorVisitor() = default;
  // The tensors of `rows` one after the other as f32 numbers; those of each expert, or tap of a
  // convolution, in turn.
  virtual void vector(const float*& to, const std::vector<TensorRow>& rows,
                      const Each* each = nullptr) = 0;
  // Tensors that meet the same input, as one matrix.
  virtual void matrix(Matrix& to, const std::vector<TensorRow>& rows, MatrixForm form = {}) = 0;
  // Numbers that no checkpoint holds.
  virtual void numbers(const int32_t*&, const std::vector<int32_t>&) {}
  virtual void numbers(const float*&, const std::vector<float>&) {}
};

}  // namespace invar
