// The vectors that tokens bring to each layer, and the operations that end one (Gemma 4,
// numerics 4.5).
#include <cmath>

#include "model/operations.h"

namespace invar {

// The norm of a product divided by sqrt(D) is that of the product with D times the epsilon.
void Operations::make_layer_inputs() {
  const LayerInputWeights& w = model_.weights->layer_inputs();
  const int64_t each = spec_.layer_input_width(), width = w.width();
  if (width == 0) return;
  float *inputs = ws_.layer_inputs.data(), *contexts = ws_.layer_contexts.data();
  run("embed", kernels_.embed,
      EmbedParams{.tokens = tables_.tokens,
                  .table = w.embedding,
                  .rows = rows_,
                  .out = inputs,
                  .scale = static_cast<float>(std::sqrt(static_cast<double>(each) / 2))});
  round(ws_.hidden.data(), spec_.hidden, ws_.final_normed);
  product("layer inputs", ws_.final_normed, w.projection, nullptr, rows_, contexts, width);
  run("norm", kernels_.rms_norm,
      RmsNormParams{.x = contexts,
                    .x_stride = each,
                    .rows_of = nullptr,
                    .weight = w.norm,
                    .eps = spec_.norm_eps * static_cast<float>(spec_.hidden),
                    .rows = rows_ * width / each,
                    .width = each,
                    .out = {contexts, DType::f32, each},
                    .keeps_pad = true});
  run("add", kernels_.add,
      AddParams{.x = contexts,
                .x_stride = width,
                .bias = nullptr,
                .rows = rows_,
                .width = width,
                .y = inputs,
                .scale = static_cast<float>(std::sqrt(0.5))});
}

const float* Operations::layer_inputs(int layer) const {
  return ws_.layer_inputs.data() + int64_t{layer} * spec_.layer_input_width();
}

int64_t Operations::layer_inputs_stride() const {
  return model_.weights->layer_inputs().width();
}

void Operations::add_normed(float* x, int64_t stride, const float* norm) {
  settle();
  const AddNormParams sum{.x = x,
                          .x_stride = stride,
                          .bias = nullptr,
                          .norm = norm,
                          .eps = spec_.norm_eps,
                          .rows = rows_,
                          .width = spec_.hidden,
                          .y = ws_.hidden.data(),
                          .scale = spec_.residual_scale,
                          .next = nullptr,
                          .out = {}};
  if (kernels_.add_norm && !model_.arithmetic.is_baseline)
    run("add, norm", kernels_.add_norm, sum);
  else
    add_now(sum, x, stride);
  round_residual();
}

void Operations::scale_stream(const float* by) {
  settle();
  run("scale", kernels_.scale_rows,
      ScaleRowsParams{.x = ws_.hidden.data(), .rows = rows_, .width = spec_.hidden, .factor = by});
  round_residual();
}

}  // namespace invar
