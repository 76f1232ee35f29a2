// How the products of a step are computed where there is a choice: what is cut, what goes head by
// head, what is fetched meanwhile. No choice changes a bit, but for those of the baseline, which
// are there to be compared with.
#pragma once

#include "model/decoder.h"

namespace invar {

class ProductPlan {
 public:
  // Of a step of `rows` rows.
  ProductPlan(const Decoder& model, int64_t rows) : model_(model), rows_(rows) {}

  // Into how many runs a product's inner size is cut: `defined` by the arithmetic (numerics 2),
  // unless this is the baseline.
  int split_k(int defined, int64_t k) const;

  // Whether the product of q, k and v and what follows it go head by head: with many rows, when
  // the heads share out evenly over the team.
  bool goes_by_heads() const;

  // What the team reads after each of a layer's products.
  const Matrix* after_qkv(int layer) const { return &weights(layer).o; }
  const Matrix* after_o(int layer) const {
    const LayerWeights& w = weights(layer);
    if (w.router.data) return &w.router;
    return w.gate_up.data ? &w.gate_up : after_down(layer);
  }
  const Matrix* after_gate_up(int layer) const { return &weights(layer).down; }
  const Matrix* after_down(int layer) const;

 private:
  const LayerWeights& weights(int layer) const { return model_.weights->layers()[layer]; }

  const Decoder& model_;
  const int64_t rows_;
};

}  // namespace invar
