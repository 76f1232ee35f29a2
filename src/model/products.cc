// The matrix products of operations.h: by which kernels they are computed, and what ends them.
#include <utility>

#include "kernels/product_way.h"
#include "model/baseline.h"
#include "model/operations.h"

namespace invar {

int Operations::split_k(int defined, int64_t k) const {
  const Arithmetic& arithmetic = model_.arithmetic;
  return arithmetic.is_baseline ? baseline::split_k(rows_, k, arithmetic.baseline_split_k)
                                : defined;
}

Activation Operations::factor(const Activation& x, const Matrix& w, int64_t rows, int split_k) {
  const ProductWay way = product_way(kernels_, w.type);
  if (!way.quantise || (way.makes_rows && way.makes_rows(w, rows, split_k))) return x;
  Activation out = ws_.quantised;
  out.type = w.type;
  out.stride = int8_stride(w.k, kernels_.weights);
  run("quantise", way.quantise,
      QuantiseParams{.x = x, .rows = rows, .width = w.k, .split_k = split_k, .out = out});
  return out;
}

void Operations::run_product(const char* name, MatmulParams params) {
  if (const auto norm = late_norm(params.x))
    return run(name, at_once_.normed_matmul, NormedMatmulParams{*norm, params});
  params.x = factor(params.x, params.w, params.rows, params.split_k);
  run(name, product_way(kernels_, params.w.type).matmul, params);
}

void Operations::product(const char* name, const Activation& x, const Matrix& w, const float* bias,
                         int64_t rows, float* y, int64_t y_stride, const Matrix* next) {
  std::optional<AdapterParams> added;
  if (is_adapted(w)) added = shrink(x, w, 1, false);
  run_product(name, {.x = x,
                     .w = w,
                     .rows = rows,
                     .split_k = this->split_k(1, w.k),
                     .bias = bias,
                     .accumulate = false,
                     .y = y,
                     .y_stride = y_stride,
                     .scratch = ws_.blocks_scratch.data(),
                     .next = next});
  if (added) expand(*added, false, y, y_stride);
}

void Operations::gated_product(const char* name, GatedMatmulParams params, float* dots) {
  params.scratch = ws_.blocks_scratch.data();
  if (is_adapted(params.gate_up))
    return adapted_gated_product(name, params, tape_ ? dots : nullptr);
  if (const auto norm = late_norm(params.x))
    return run(name, at_once_.normed_gated_matmul, NormedGatedMatmulParams{*norm, params});
  const ProductWay way = product_way(kernels_, params.gate_up.type);
  if (tape_ && dots && !way.quantise)
    return run(name, tape_->kernels().gated_matmul, KeptGatedMatmulParams{params, dots});
  params.x = factor(params.x, params.gate_up, rows_, 1);
  run(name, way.gated_matmul, params);
}

void Operations::partial_product(const char* name, const Activation& x, const Matrix& w,
                                 int split_k, float* y, int64_t y_stride, bool takes_adapters) {
  const bool alone = group_.size() == 1;
  std::optional<AdapterParams> added;
  if (takes_adapters && (alone ? is_adapted(w) : !ws_.adapters.is_empty()))
    added = shrink(x, w, this->split_k(split_k, w.k), true);
  run_product(name, {.x = x,
                     .w = w,
                     .rows = rows_,
                     .split_k = this->split_k(split_k, w.k),
                     .bias = nullptr,
                     .accumulate = false,
                     .y = y,
                     .y_stride = y_stride,
                     .scratch = ws_.blocks_scratch.data()});
  if (!alone)
    timed(times_, "exchange",
          [&] { group_.tree_all_reduce(y, rows_ * y_stride, model_.execution); });
  if (added) expand(*added, true, y, y_stride);
}

void Operations::heads_product(const char* name, const Activation& x, int64_t x_step,
                               const Matrix& w, float* y) {
  run(name, kernels_.heads_matmul,
      HeadsMatmulParams{.each = {.x = x,
                                 .w = w,
                                 .rows = rows_,
                                 .split_k = 1,
                                 .bias = nullptr,
                                 .accumulate = false,
                                 .y = y,
                                 .y_stride = w.count * w.n,
                                 .scratch = ws_.blocks_scratch.data()},
                        .x_step = x_step,
                        .matmul = kernels_.matmul});
}

void Operations::add_product(const char* name, const Activation& x, const Matrix& w, int split_k,
                             const float* bias, const float* norm_weight, const Matrix* next,
                             float* kept) {
  settle();
  const bool alone = group_.size() == 1;
  // Ranks that share an adapter's inner size do so together, whether it is beside this product or
  // not.
  const bool adapted = alone ? is_adapted(w) : !ws_.adapters.is_empty();
  const bool at_once = alone && !norm_weight && spec_.residual_scale == 1 && !adapted;
  const int64_t stride = norm_weight ? round_up(spec_.hidden, kLeafPad) : spec_.hidden;
  float* hidden = ws_.hidden.data();
  float* partial = adapted ? ws_.adapters.added(model_, rows_) : ws_.partial.data();
  float* product = kept ? kept : partial;
  const int64_t product_stride = kept ? spec_.hidden : stride;
  std::optional<AdapterParams> added;
  if (adapted) added = shrink(x, w, this->split_k(split_k, w.k), true);
  run_product(name, {.x = x,
                     .w = w,
                     .rows = rows_,
                     .split_k = this->split_k(split_k, w.k),
                     .bias = at_once ? bias : nullptr,
                     .accumulate = at_once,
                     .y = at_once ? hidden : product,
                     .y_stride = at_once ? spec_.hidden : product_stride,
                     .scratch = ws_.blocks_scratch.data(),
                     .next = next});
  if (!alone)
    timed(times_, "exchange",
          [&] { group_.tree_all_reduce(partial, rows_ * stride, model_.execution); });
  if (adapted) {
    add_bias(product, product_stride, std::exchange(bias, nullptr), spec_.hidden);
    expand(*added, true, product, product_stride);
  }
  const AddNormParams sum{.x = partial,
                          .x_stride = stride,
                          .bias = bias,
                          .norm = norm_weight,
                          .eps = spec_.norm_eps,
                          .rows = rows_,
                          .width = spec_.hidden,
                          .y = hidden,
                          .scale = spec_.residual_scale,
                          .next = nullptr,
                          .out = {}};
  if (!at_once && !kept && kernels_.add_norm && !model_.arithmetic.is_baseline) {
    waiting_ = sum;
    if (hooks_.wants_hidden()) settle();
    return;
  }
  if (!at_once) add_now(sum, product, product_stride);
  round_residual();
}

void Operations::add_now(const AddNormParams& sum, const float* product, int64_t product_stride) {
  if (sum.norm)
    run("norm", kernels_.rms_norm,
        RmsNormParams{.x = product,
                      .x_stride = product_stride,
                      .rows_of = nullptr,
                      .weight = sum.norm,
                      .eps = sum.eps,
                      .rows = sum.rows,
                      .width = sum.width,
                      .out = {sum.x, DType::f32, sum.x_stride},
                      .keeps_pad = true});
  run("add", kernels_.add,
      AddParams{.x = sum.x,
                .x_stride = sum.x_stride,
                .bias = sum.bias,
                .rows = sum.rows,
                .width = sum.width,
                .y = sum.y,
                .scale = sum.scale});
}

}  // namespace invar
