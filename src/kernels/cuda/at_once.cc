#include "kernels/cuda/at_once.h"

#include "base/check.h"
#include "kernels/cuda/normed_products.h"

namespace invar::cuda {

namespace {

// Blocks that are unpacked to bf16.
bool has_blocks(const Matrix& w) {
  return storage_of(w.type).has_blocks() && !is_e4m3(w.type);
}

RowNorm row_of(const RmsNormParams& p) {
  CHECK(p.rows == 1 && !p.rows_of, "a norm inside of a product is that of one row");
  return {p.x, p.weight, p.eps, static_cast<int>(p.width)};
}

}  // namespace

bool norms_row(const Matrix& w, const Execution& on) {
  if (w.type == DType::e4m3) return false;  // its rows are quantised by a kernel of their own
  return has_blocks(w) ? blocks_norm(w, on) : few_norms(w, on);
}

void normed_matmul(const NormedMatmulParams& p, const Execution& on) {
  CHECK(p.product.split_k == 1, "a norm inside of a product of one run");
  (has_blocks(p.product.w) ? normed_matmul_by_blocks : few_normed_matmul)(p.product, row_of(p.norm),
                                                                          on);
}

void normed_gated_matmul(const NormedGatedMatmulParams& p, const Execution& on) {
  (has_blocks(p.product.gate_up) ? normed_gated_by_blocks : few_normed_gated)(p.product,
                                                                              row_of(p.norm), on);
}

AtOnce at_once() {
  return {.route_experts = route_experts,
          .sort_and_gather = sort_and_gather,
          .short_attention = short_attention,
          .norms_row = norms_row,
          .normed_matmul = normed_matmul,
          .normed_gated_matmul = normed_gated_matmul};
}

}  // namespace invar::cuda
