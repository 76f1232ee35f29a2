// The backward of an adapter that all rows of a batch have: what a product with it gives back to
// its input, and the gradients of its A and B (numerics 9).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/training.h"
#include "model/adapter_weights.h"
#include "model/parameters.h"

namespace invar {

class AdapterGradients {
 public:
  // `weights` must live as long; their tensors stand in the layout under PEFT's names.
  // For batches of up to `max_rows` rows.
  AdapterGradients(const Decoder& decoder, const AdapterWeights& weights,
                   const ParameterLayout& layout, int max_rows);

  // Takes over A and B, bf16 in the layout's order.
  void update(const bf16_t* numbers, const TrainingKernels& kernels, const Execution& on);

  // One tensor's A and B beside a product.
  struct Tensor {
    int64_t a, b;  // where they begin in the layout
    int64_t rank;
    Columns inner;  // among the ranks of all of them, each padded to whole leaves
    int64_t inputs;
    // Rows of B from an element on, and what they are in a row of the product's outputs.
    struct Rows {
      int64_t first;
      Columns outputs;
    };
    std::vector<Rows> rows;
    // Where the sum of its dA goes: to A, or behind the layout where another tensor has the same
    // A, for files hold several as one.
    int64_t chain;
  };
  // A chain that is added to A at the end of a group, in this order.
  struct LaterUse {
    int64_t chain, a, count;
  };
  const std::vector<LaterUse>& later_uses() const { return later_uses_; }
  // Elements of their chains, behind the layout.
  int64_t later_size() const { return later_size_; }
  // All that stands beside one product.
  struct Product {
    const AdapterWeights::Product* forward;
    Matrix a, b;  // the other way round: [K][ranks], [ranks][the row of outputs]
    std::vector<Tensor> tensors;
  };
  // Null where there is nothing.
  const Product* beside(const Matrix& w) const;

  // Room for a product's A x, or what goes back there, and for what becomes of it when it is
  // rounded: [T][.].
  float* sums() const { return sums_.data(); }
  Activation inner(const Product& product) const { return rounded(inner_, product); }
  Activation d_inner(const Product& product) const { return rounded(d_inner_, product); }

 private:
  static Activation rounded(const DeviceArray<bf16_t>& memory, const Product& product) {
    return {memory.data(), DType::bf16, product.forward->a.n};
  }
  void add(const Decoder& decoder, const AdapterWeights::Product& product,
           const std::map<std::string, int64_t>& offsets);
  Matrix placed(const Decoder& decoder, int64_t n, int64_t k);
  void place_chains(int64_t behind);

  std::map<const void*, Product> products_;
  std::vector<DeviceArray<bf16_t>> memory_;
  DeviceArray<float> sums_;
  DeviceArray<bf16_t> inner_, d_inner_;
  std::vector<LaterUse> later_uses_;
  int64_t later_size_ = 0;
};

}  // namespace invar
