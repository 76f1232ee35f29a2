#include "model/backward.h"

#include <algorithm>

#include "base/check.h"
#include "model/backward_pass.h"
#include "model/forward.h"
#include "model/parts/part_of.h"

namespace invar {

BackwardPass::BackwardPass(Decoder& decoder, const TransposedWeights& transposed,
                           const TrainingKernels& kernels, const ParameterLayout& layout,
                           const Batch& batch, SequenceStore& kv, BackwardWorkspace& ws,
                           BackwardIo& io)
    : model_(decoder),
      spec_(decoder.spec),
      transposed_(transposed),
      kernels_(kernels),
      layout_(layout),
      batch_(batch),
      kv_(kv),
      ws_(ws),
      io_(io),
      rows_(static_cast<int64_t>(batch.rows.size())) {}

void BackwardPass::run() {
  CHECK(rows_ % kLeafPad == 0 && rows_ <= ws_.max_rows, "rows of a backward pass");
  clear_hidden();
  if (io_.mtp) mtp_module(*io_.mtp);
  tables_ = ws_.table_builder.build(batch_, kv_.block_size(), model_.execution, kv_.cells());
  head(io_.d_logits, io_.tape->final_normed(), io_.tape->output(), gradient(TensorRole::head, -1),
       gradient(TensorRole::final_norm, -1), model_.weights->final_norm());
  for (int layer = spec_.layers - 1; layer >= 0; --layer) {
    begin_layer(layer);
    if (io_.tape->recompute()) forward_again(batch_, layer, io_.tape->input(layer));
    layer_backward(layer);
    if (io_.end_layer) io_.end_layer(layer);
    for (const ExitGradient& exit : io_.exits)
      if (exit.layers == layer)
        head(exit.d_logits, exit.normed, io_.tape->input(layer), exit.head, exit.final_norm,
             model_.weights->final_norm());
  }
  embed(gradient(TensorRole::embedding, -1));
}

void BackwardPass::begin_layer(int layer) {
  if (model_.supply) model_.supply->need_layer_backward(layer);
  if (io_.begin_layer) io_.begin_layer(layer);
}

// The parts of a layer, the last first.
void BackwardPass::layer_backward(int layer) {
  const size_t number = static_cast<size_t>(layer);
  const LayerParts& parts = model_.parts[number];
  for (size_t part = parts.size(); part-- > 0;)
    parts[part]->backward({.layer = layer,
                           .weights = *model_.weights->layers()[number][part],
                           .transposed = *transposed_.layer(layer)[part],
                           .activations = *io_.tape->layer(layer)[part],
                           .kv = kv_.layer(layer),
                           .pass = *this});
}

// logits = head(norm(block(projection([norm(embedding), norm(h)])))): leaves the gradient of the
// residual stream after the model's last layer, which h is, or the model's final norm of it.
void BackwardPass::mtp_module(const MtpGradient& mtp) {
  const int layer = spec_.layers;
  tables_ = ws_.table_builder.build(*mtp.batch, kv_.block_size(), model_.execution, kv_.cells());
  begin_layer(layer);
  head(mtp.d_logits, io_.tape->final_normed(1), io_.tape->output(1), mtp.head,
       gradient(TensorRole::mtp_head_norm, layer), model_.weights->module_norm());
  if (io_.tape->recompute()) forward_again(*mtp.batch, layer, io_.tape->module_input());
  layer_backward(layer);
  for (const int32_t row : mtp.own_rows)
    model_.execution.stream->clear(d_hidden() + row * int64_t{spec_.hidden},
                                   static_cast<size_t>(spec_.hidden) * sizeof(float));
  if (io_.tape->norms_module_input()) output_norm(mtp.final_norm);
  if (io_.end_layer) io_.end_layer(layer);
}

// From the gradient of norm(x), x the residual stream after the model's last layer, to that of x.
void BackwardPass::output_norm(float* norm_gradient) {
  const int64_t d = spec_.hidden;
  copy_columns({ws_.normed.data(), d}, {d_hidden(), d}, d, rows_);
  clear_hidden();
  norm_chain({ws_.normed.data(), io_.tape->output(), model_.weights->final_norm(), d_hidden(),
              stream_size()},
             {norm_gradient});
}

// logits = head(norm(x)): adds to the gradient of x, a residual stream.
void BackwardPass::head(const Activation& d_logits, const Activation& normed, const float* x,
                        float* head_gradient, float* norm_gradient, const float* norm_weight) {
  if (model_.supply) model_.supply->need_head_backward();
  matmul("head dX", d_logits, transposed_.head(), ws_.normed.data());
  pack_inputs(normed, spec_.hidden);
  weight_gradient("head dW", head_gradient, d_logits, {0, spec_.vocab}, spec_.hidden);
  // An exit has no chain for a bias: no family with LayerNorms has exits that are trained.
  norm_chain({ws_.normed.data(), x, norm_weight, d_hidden(), stream_size()},
             {norm_gradient, gradient(TensorRole::final_norm_bias, -1)},
             spec_.norm == NormKind::layer);
}

void BackwardPass::norm(const Norm& norm, const float* h, float* d) {
  if (!norm.weight) return add_to_hidden(ws_.normed);
  const bool is_layer = spec_.norm == NormKind::layer;
  norm_chain(
      {ws_.normed.data(), h, norm.weight, d ? d : d_hidden(), stream_size()},
      {gradient(norm.role, norm.layer), is_layer ? gradient(norm.bias, norm.layer) : nullptr},
      is_layer);
}

void BackwardPass::norm_part(const Norm& norm, const NormSize& size, const float* x) {
  clear(ws_.latent, size.width);
  norm_chain({ws_.latent_normed.data(), x, norm.weight, ws_.latent.data(), size},
             {gradient(norm.role, norm.layer)});
}

Activation BackwardPass::added(TensorRole role, int layer, const float* weight, const float* y) {
  if (!weight) return round(d_hidden(), spec_.hidden, ws_.out);
  clear(ws_.normed, spec_.hidden);
  norm_chain({d_hidden(), y, weight, ws_.normed.data(), stream_size()}, {gradient(role, layer)});
  return round(ws_.normed.data(), spec_.hidden, ws_.out);
}

// dx = dx + the gradient of norm(x), whose output has the gradient dy; a LayerNorm has a bias.
void BackwardPass::norm_chain(const NormChain& of, const NormGradients& gradients,
                              bool is_layer_norm) {
  const auto [width, eps] = of.size;
  const NormBackwardParams input{.dy = of.dy,
                                 .x = of.x,
                                 .weight = of.weight,
                                 .eps = eps,
                                 .rows = rows_,
                                 .width = width,
                                 .dx = of.dx,
                                 .rs = ws_.rs.data()};
  const NormGradientParams parameters{.dy = of.dy,
                                      .dy_stride = width,
                                      .x = of.x,
                                      .x_stride = width,
                                      .rs = ws_.rs.data(),
                                      .rs_stride = 1,
                                      .rows = rows_,
                                      .heads = 1,
                                      .width = width,
                                      .gradient = gradients.weight};
  if (!is_layer_norm) {
    run("norm backward", kernels_.norm_backward, input);
    if (gradients.weight) run("norm gradient", kernels_.norm_gradient, parameters);
    return;
  }
  float* mean = ws_.rs.data() + rows_;
  run("norm backward", kernels_.layer_norm_backward, LayerNormBackwardParams{input, mean});
  if (gradients.weight)
    run("norm gradient", kernels_.layer_norm_gradient,
        LayerNormGradientParams{parameters, mean, gradients.bias});
}

void BackwardPass::add_to_hidden(const DeviceArray<float>& x) {
  run("add", kernels_.add_gradient,
      AddGradientParams{.x = x.data(), .count = rows_ * spec_.hidden, .y = d_hidden()});
}

void BackwardPass::clear(const DeviceArray<float>& x, int64_t width) {
  model_.execution.stream->clear(x.data(), static_cast<size_t>(rows_ * width) * sizeof(float));
}

// h = rows of the embedding
void BackwardPass::embed(float* embedding_gradient) {
  if (!embedding_gradient) return;
  run("embed gradient", kernels_.embed_gradient,
      EmbedGradientParams{.tokens = tables_.tokens,
                          .dx = d_hidden(),
                          .rows = rows_,
                          .width = spec_.hidden,
                          .gradient = embedding_gradient,
                          .scale = spec_.embedding_scale});
}

// A layer's activations, which the tape has not kept, from the residual stream before it.
void BackwardPass::forward_again(const Batch& batch, int layer, float* before) {
  Batch one = batch;
  one.layer_begin = layer;
  one.layer_end = layer + 1;
  one.aux_layers.clear();
  ForwardIo io;
  io.tape = io_.tape;
  io.times = io_.times;
  io.given_experts = io_.given_experts;
  io.device_hidden = before;
  io.keep_logits = true;
  forward(model_, one, kv_, *io_.forward_workspace, solo_group(), io);
}

void BackwardPass::matmul(const char* name, const Activation& x, const Matrix& w, float* y,
                          bool accumulate, int64_t y_stride) {
  run(name, model_.kernels.matmul,
      MatmulParams{.x = x,
                   .w = w,
                   .rows = rows_,
                   .split_k = 1,
                   .bias = nullptr,
                   .accumulate = accumulate,
                   .y = y,
                   .y_stride = y_stride ? y_stride : w.n});
}

Activation BackwardPass::round(const float* x, int64_t width, const DeviceArray<bf16_t>& memory,
                               int64_t x_stride) {
  const Activation out = activation(memory, width);
  run("round", kernels_.round,
      RoundParams{.x = x,
                  .x_stride = x_stride ? x_stride : width,
                  .rows_of = nullptr,
                  .rows = rows_,
                  .width = width,
                  .out = out});
  return out;
}

void BackwardPass::pack_inputs(const Activation& x, int64_t width, int64_t rows) {
  if (!io_.adapter) pack(x, width, rows < 0 ? rows_ : rows);
}

// The inputs of a product as the packed side of its weight gradient.
void BackwardPass::pack(const Activation& x, int64_t width, int64_t rows) {
  run("pack inputs", kernels_.pack_columns,
      PackColumnsParams{.x = static_cast<const bf16_t*>(x.data),
                        .x_stride = x.stride,
                        .rows = rows,
                        .width = width,
                        .inner = {0, rows},
                        .inner_size = rows,
                        .out = ws_.packed.data(),
                        .layout = model_.kernels.weights});
}

void BackwardPass::weight_gradient(const char* name, float* out, const Activation& dy,
                                   Columns columns, int64_t inputs, int64_t rows) {
  if (out) extend_weight(name, out, dy, columns, inputs, rows < 0 ? rows_ : rows);
}

// The gradient of a weight [columns][inputs] from that of its outputs and the packed inputs.
void BackwardPass::extend_weight(const char* name, float* out, const Activation& dy,
                                 Columns columns, int64_t inputs, int64_t rows) {
  if (rows == 0) {  // an expert that nobody chose
    const int64_t bytes = columns.count * inputs * int64_t{sizeof(float)};
    if (io_.begins) model_.execution.stream->clear(out, static_cast<size_t>(bytes));
    return;
  }
  const Activation transposed{ws_.transposed.data(), DType::bf16, activation_stride(rows)};
  run("transpose", kernels_.transpose,
      TransposeParams{.x = dy, .rows = rows, .columns = columns, .out = transposed});
  const Matrix packed{ws_.packed.data(), DType::bf16, inputs, rows, model_.kernels.weights};
  // The first batch's chains begin with +0 whatever `out` holds.
  run(name, io_.begins ? model_.kernels.matmul : kernels_.extend_matmul,
      MatmulParams{.x = transposed,
                   .w = packed,
                   .rows = columns.count,
                   .split_k = 1,
                   .bias = nullptr,
                   .accumulate = false,
                   .y = out,
                   .y_stride = inputs});
}

void BackwardPass::bias_gradient(TensorRole role, int layer, const Activation& dy,
                                 Columns columns) {
  if (layout_.offset(role, layer) < 0) return;
  run("bias gradient", kernels_.bias_gradient,
      BiasGradientParams{
          .dy = dy, .rows = rows_, .columns = columns, .gradient = gradient(role, layer)});
}

float* BackwardPass::gradient(TensorRole role, int layer) const {
  const int64_t offset = layout_.offset(role, layer);
  return offset < 0 ? nullptr : gradient_at(offset);
}

float* BackwardPass::gradient_at(int64_t offset) const {
  return io_.gradients + (io_.places ? io_.places->place(offset) : offset);
}

void BackwardPass::clear_hidden() {
  clear(ws_.hidden, spec_.hidden);
}

void backward(Decoder& decoder, const TransposedWeights& transposed, const TrainingKernels& kernels,
              const ParameterLayout& layout, const Batch& batch, SequenceStore& kv,
              BackwardWorkspace& workspace, BackwardIo& io) {
  ScopedFlushToZero flush;
  BackwardPass(decoder, transposed, kernels, layout, batch, kv, workspace, io).run();
}

}  // namespace invar
