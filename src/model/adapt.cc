// The operations of adapters (numerics 2.4), beside those of operations.cc.
#include "kernels/adapters.h"
#include "model/operations.h"

namespace invar {

AdapterParams Operations::shrink(const Activation& x, const Matrix& w, int split_k,
                                 bool is_shared) {
  AdapterParams params = ws_.adapters.params(w, is_shared && group_.size() > 1);
  params.x = x;
  params.split_k = split_k;
  params.matmul = kernels_.matmul;
  run("adapter A", kernels_.adapter_shrink, params);
  return params;
}

void Operations::expand(AdapterParams params, bool is_shared, float* y, int64_t y_stride) {
  params.y = y;
  params.y_stride = y_stride;
  if (is_shared && group_.size() > 1)
    timed(times_, "exchange", [&] {
      group_.tree_all_reduce(params.sums, rows_ * params.sums_stride, model_.execution);
    });
  if (kernels_.adapter_round) run("adapter round", kernels_.adapter_round, params);
  run("adapter B", kernels_.adapter_expand, params);
}

void Operations::add_adapted(const Activation& x, const Matrix& stack, int64_t size,
                             ExpertRows rows, float* y, int64_t y_stride) {
  AdapterParams params =
      ws_.adapters.params_of_experts(model_, stack, size, rows.begin, rows.rows_of);
  params.x = x;
  params.matmul = kernels_.matmul;
  run("adapter A", kernels_.adapter_shrink, params);
  expand(params, false, y, y_stride);
}

void Operations::add_bias(float* x, int64_t x_stride, const float* bias, int64_t width,
                          PackPlace place) {
  if (bias)
    run("bias", kernels_.add_bias,
        AddBiasParams{.x = x,
                      .x_stride = x_stride,
                      .rows = rows_,
                      .width = width,
                      .bias = bias,
                      .output = place.output,
                      .step = place.step});
}

// The pair as one matrix, then what the fused kernel does behind its dots.
void Operations::adapted_gated_product(const char* name, const GatedMatmulParams& params,
                                       float* kept) {
  const Matrix both = as_one(params.gate_up);
  const AdapterParams added = shrink(params.x, params.gate_up, 1, false);
  float* dots = kept ? kept : ws_.adapters.pair_products(model_, rows_, both.n);
  run_product(name, {.x = params.x,
                     .w = both,
                     .rows = rows_,
                     .split_k = 1,
                     .bias = nullptr,
                     .accumulate = false,
                     .y = dots,
                     .y_stride = both.n,
                     .scratch = params.scratch,
                     .next = params.next});
  add_bias(dots, both.n, params.gate_bias, params.gate_up.n, column_of_pair(params.gate_up, 0));
  add_bias(dots, both.n, params.up_bias, params.gate_up.n, column_of_pair(params.gate_up, 1));
  expand(added, false, dots, both.n);
  run("gate", kernels_.gate_pairs,
      GatePairsParams{.dots = dots,
                      .dots_stride = both.n,
                      .rows = rows_,
                      .width = params.gate_up.n,
                      .curve = params.curve,
                      .out = params.out});
}

}  // namespace invar
