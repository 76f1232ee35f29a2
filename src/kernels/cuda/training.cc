// The table of training's operations on a GPU.
#include "base/check.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/states_backward.h"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda {

namespace {

// Both products as one matrix, whose outputs stand as the dots do; then the curve.
template <Order order>
void kept_gated_matmul(const KeptGatedMatmulParams& kept, const Execution& on) {
  const GatedMatmulParams& p = kept.product;
  CHECK(kept.dots, "dots that are kept");
  if (p.rows == 0) return;
  const int64_t width = 2 * round_up(p.gate_up.n, kPanelWidth);
  Matrix both = p.gate_up;
  both.n = both.layout == WeightLayout::rows ? 2 * both.all_rows() : width;
  both.count = 1;
  kernels(order).matmul({.x = p.x,
                         .w = both,
                         .rows = p.rows,
                         .split_k = 1,
                         .bias = nullptr,
                         .accumulate = false,
                         .y = kept.dots,
                         .y_stride = width},
                        on);
  gate_dots(kept, on);
}

template <Order order>
TrainingKernels training_table() {
  return {.name = "cuda",
          .order = order,
          .gated_matmul = kept_gated_matmul<order>,
          .extend_matmul = extend_matmul<order>,
          .round = round,
          .transpose = transpose,
          .pack_columns = pack_columns,
          .bias_gradient = bias_gradient,
          .norm_backward = norm_backward,
          .norm_gradient = norm_gradient,
          .gate_backward = gate_backward,
          .attention_backward = attention_backward<order>,
          .attention_scratch = [](int64_t, int64_t) { return int64_t{0}; },
          .qkv_backward = qkv_backward,
          .embed_gradient = embed_gradient,
          .loss = loss,
          .squares = squares,
          .adam = adam,
          .add_gradient = add_gradient,
          .pick = pick,
          .layer_norm_backward = layer_norm_backward,
          .layer_norm_gradient = layer_norm_gradient,
          .curve_backward = curve_backward,
          .pair_gradients = pair_gradients,
          .sum_pairs = sum_pairs,
          .router_backward = router_backward,
          .gather_leaves = gather_leaves,
          .shared_gradients = shared_gradients,
          .short_conv_backward = short_conv_backward,
          .gated_norm_backward = gated_norm_backward,
          .recurrent_gates_backward = recurrent_gates_backward,
          .recurrent_keys_backward = recurrent_keys_backward,
          .recurrence_backward = recurrence_backward<order>,
          .recurrence_scratch = recurrence_backward_scratch,
          .row_sums = row_sums,
          .output_gate_backward = output_gate_backward};
}

}  // namespace

void attention_sums(Order order, const PartialAttentionParams& p, const Execution& on) {
  if (order == Order::hopper && tiles_keep_sums(p.of)) return attend_with_sums(p, on);
  order == Order::hopper ? attention_sums<Order::hopper>(p, SumsOf::all_rows, on)
                         : attention_sums<Order::portable>(p, SumsOf::all_rows, on);
}

TrainingKernels training_kernels(Order order) {
  return order == Order::hopper ? training_table<Order::hopper>()
                                : training_table<Order::portable>();
}

}  // namespace invar::cuda
