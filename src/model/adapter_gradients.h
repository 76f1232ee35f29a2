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
    Columns inner;    // among the ranks of all of them, each padded to whole leaves
    Columns outputs;  // in a row of the product's outputs
    int64_t inputs;
  };
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

  std::map<const void*, Product> products_;
  std::vector<DeviceArray<bf16_t>> memory_;
  DeviceArray<float> sums_;
  DeviceArray<bf16_t> inner_, d_inner_;
};

}  // namespace invar
