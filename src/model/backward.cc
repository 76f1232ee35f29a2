#include "model/backward.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/forward.h"

namespace invar {

// One batch. Letters as in forward.cc; d_x is the gradient of x.
class BackwardPass {
 public:
  BackwardPass(Decoder& decoder, const TransposedWeights& transposed,
               const TrainingKernels& kernels, const ParameterLayout& layout, const Batch& batch,
               KvStorage& kv, BackwardWorkspace& ws, BackwardIo& io)
      : model_(decoder),
        spec_(decoder.spec),
        transposed_(transposed),
        kernels_(kernels),
        layout_(layout),
        batch_(batch),
        kv_(kv),
        ws_(ws),
        io_(io),
        rows_(static_cast<int64_t>(batch.rows.size())),
        qkv_width_(int64_t{spec_.query_width()} + 2 * spec_.kv_width()),
        pair_width_(2 * round_up(spec_.ffn, kPanelWidth)) {}

  void run() {
    CHECK(rows_ % kLeafPad == 0 && rows_ <= ws_.max_rows, "rows of a backward pass");
    clear_hidden();
    if (io_.mtp) mtp_module(*io_.mtp);
    tables_ = ws_.table_builder.build(batch_, kv_.block_size(), model_.execution);
    head(io_.d_logits, io_.tape->final_normed(), io_.tape->output(), gradient(TensorRole::head, -1),
         gradient(TensorRole::final_norm, -1), model_.weights->final_norm());
    for (int layer = spec_.layers - 1; layer >= 0; --layer) {
      if (io_.tape->recompute()) forward_again(batch_, layer, io_.tape->layer(layer).input);
      ffn_block(layer);
      attention_block(layer);
      for (const ExitGradient& exit : io_.exits)
        if (exit.layers == layer)
          head(exit.d_logits, exit.normed, io_.tape->layer(layer).input, exit.head, exit.final_norm,
               model_.weights->final_norm());
    }
    embed(gradient(TensorRole::embedding, -1));
  }

 private:
  // logits = head(norm(block(projection([norm(embedding), norm(h)])))): leaves the gradient of h,
  // the residual stream after the model's last layer.
  void mtp_module(const MtpGradient& mtp) {
    const MtpWeights& w = model_.weights->mtp();
    const int layer = spec_.layers;
    const auto of = [&](TensorRole role) { return gradient(role, layer); };
    tables_ = ws_.table_builder.build(*mtp.batch, kv_.block_size(), model_.execution);
    head(mtp.d_logits, io_.tape->final_normed(1), io_.tape->output(1), mtp.head,
         of(TensorRole::mtp_head_norm), w.head_norm);
    if (io_.tape->recompute()) forward_again(*mtp.batch, layer, io_.tape->output());
    ffn_block(layer);
    attention_block(layer);

    const Activation d_out = round(d_hidden(), spec_.hidden, ws_.out);
    pack_inputs(io_.tape->joined(), 2 * spec_.hidden);
    weight_gradient("join dW", of(TensorRole::mtp_projection), d_out, {0, spec_.hidden},
                    2 * spec_.hidden);
    clear_hidden();
    matmul("join dX", d_out, transposed_.mtp_embedding(), ws_.normed.data());
    norm(of(TensorRole::mtp_embedding_norm), w.embedding_norm, io_.tape->embedded());
    embed(mtp.embedding);
    clear_hidden();
    matmul("join dX", d_out, transposed_.mtp_hidden(), ws_.normed.data());
    norm(of(TensorRole::mtp_hidden_norm), w.hidden_norm, io_.tape->output());
  }

  // logits = head(norm(x)): adds to the gradient of x, a residual stream.
  void head(const Activation& d_logits, const Activation& normed, const float* x,
            float* head_gradient, float* norm_gradient, const float* norm_weight) {
    matmul("head dX", d_logits, transposed_.head(), ws_.normed.data());
    pack_inputs(normed, spec_.hidden);
    weight_gradient("head dW", head_gradient, d_logits, {0, spec_.vocab}, spec_.hidden);
    norm(norm_gradient, norm_weight, x);
  }

  // h = h + down(silu(gate(norm(h))) * up(norm(h)))
  void ffn_block(int layer) {
    const LayerWeights& w = model_.weights->layers()[layer];
    const LayerActivations& at = io_.tape->layer(layer);
    const Activation d_out = round(d_hidden(), spec_.hidden, ws_.out);
    matmul("down dX", d_out, transposed_.layers()[layer].down, ws_.gated.data());
    pack_inputs(at.gated, spec_.ffn);
    weight_gradient("down dW", gradient(TensorRole::down, layer), d_out, {0, spec_.hidden},
                    spec_.ffn);
    bias_gradient(TensorRole::down_bias, layer, d_out, {0, spec_.hidden});

    const Activation d_gate_up = activation(ws_.wide, pair_width_);
    run("gate backward", kernels_.gate_backward,
        GateBackwardParams{.gate_up = at.gate_up,
                           .gate_bias = w.gate_bias,
                           .up_bias = w.up_bias,
                           .d_gated = ws_.gated.data(),
                           .rows = rows_,
                           .width = spec_.ffn,
                           .out = d_gate_up});
    matmul("gated dX", d_gate_up, transposed_.layers()[layer].gate_up, ws_.normed.data());
    pack_inputs(at.ffn_normed, spec_.hidden);
    const Columns gate{0, spec_.ffn, 0}, up{0, spec_.ffn, 1};
    weight_gradient("gated dW", gradient(TensorRole::gate, layer), d_gate_up, gate, spec_.hidden);
    weight_gradient("gated dW", gradient(TensorRole::up, layer), d_gate_up, up, spec_.hidden);
    bias_gradient(TensorRole::gate_bias, layer, d_gate_up, gate);
    bias_gradient(TensorRole::up_bias, layer, d_gate_up, up);
    norm(gradient(TensorRole::post_norm, layer), w.ffn_norm, at.middle);
  }

  // h = h + o(attention(rope(qkv(norm(h)))))
  void attention_block(int layer) {
    const LayerWeights& w = model_.weights->layers()[layer];
    const LayerActivations& at = io_.tape->layer(layer);
    const Activation d_out = round(d_hidden(), spec_.hidden, ws_.out);
    matmul("o dX", d_out, transposed_.layers()[layer].o, ws_.attended.data());
    pack_inputs(at.attended, spec_.query_width());
    weight_gradient("o dW", gradient(TensorRole::o, layer), d_out, {0, spec_.hidden},
                    spec_.query_width());
    bias_gradient(TensorRole::o_bias, layer, d_out, {0, spec_.hidden});

    attention(layer, round(ws_.attended.data(), spec_.query_width(), ws_.wide));
    const Activation d_qkv = qkv(layer);
    matmul("qkv dX", d_qkv, transposed_.layers()[layer].qkv, ws_.normed.data());
    pack_inputs(at.normed, spec_.hidden);
    const int64_t q = spec_.query_width(), kv = spec_.kv_width();
    weight_gradient("qkv dW", gradient(TensorRole::q, layer), d_qkv, {0, q}, spec_.hidden);
    weight_gradient("qkv dW", gradient(TensorRole::k, layer), d_qkv, {q, kv}, spec_.hidden);
    weight_gradient("qkv dW", gradient(TensorRole::v, layer), d_qkv, {q + kv, kv}, spec_.hidden);
    bias_gradient(TensorRole::q_bias, layer, d_qkv, {0, q});
    bias_gradient(TensorRole::k_bias, layer, d_qkv, {q, kv});
    bias_gradient(TensorRole::v_bias, layer, d_qkv, {q + kv, kv});
    norm(gradient(TensorRole::input_norm, layer), w.attention_norm, at.input);
  }

  // d_qkv of rotated queries and keys, and of values.
  void attention(int layer, const Activation& d_attended) {
    const LayerActivations& at = io_.tape->layer(layer);
    run("attention backward", kernels_.attention_backward,
        AttentionBackwardParams{.forward = {.q = at.q,
                                            .rows = rows_,
                                            .heads = spec_.heads,
                                            .positions = tables_.positions,
                                            .table_of = tables_.table_of,
                                            .tables = tables_.tables,
                                            .window = spec_.window(layer),
                                            .kv = kv_.layer(layer),
                                            .out = at.attended},
                                .max = at.max,
                                .sum = at.sum,
                                .d_out = d_attended,
                                .max_positions = ws_.max_positions,
                                .d_qkv = ws_.qkv.data(),
                                .d_qkv_stride = qkv_width_,
                                .scratch = ws_.scratch.data(),
                                .scratch_stride = ws_.scratch_stride});
  }

  // The gradient of the q, k, v product; also that of the heads' norms.
  Activation qkv(int layer) {
    const LayerWeights& w = model_.weights->layers()[layer];
    const Activation d_qkv = activation(ws_.wide, qkv_width_);
    run("rotation backward", kernels_.qkv_backward,
        QkvBackwardParams{.d_qkv = ws_.qkv.data(),
                          .d_qkv_stride = qkv_width_,
                          .qkv = io_.tape->layer(layer).qkv,
                          .qkv_stride = qkv_width_,
                          .rows = rows_,
                          .heads = spec_.heads,
                          .kv_heads = spec_.kv_heads,
                          .head_dim = spec_.head_dim,
                          .q_norm = w.q_norm,
                          .k_norm = w.k_norm,
                          .norm_eps = spec_.norm_eps,
                          .positions = tables_.positions,
                          .cos = model_.rope.cos(),
                          .sin = model_.rope.sin(),
                          .rs = ws_.rs.data(),
                          .out = d_qkv});
    if (spec_.qk_norm) {
      head_norm_gradient(TensorRole::q_norm, layer, 0, spec_.heads);
      head_norm_gradient(TensorRole::k_norm, layer, spec_.heads, spec_.kv_heads);
    }
    return d_qkv;
  }

  void head_norm_gradient(TensorRole role, int layer, int64_t first, int64_t heads) {
    const int64_t column = first * spec_.head_dim;
    run("norm gradient", kernels_.norm_gradient,
        NormGradientParams{.dy = ws_.qkv.data() + column,
                           .dy_stride = qkv_width_,
                           .x = io_.tape->layer(layer).qkv + column,
                           .x_stride = qkv_width_,
                           .rs = ws_.rs.data() + first,
                           .rs_stride = spec_.heads + spec_.kv_heads,
                           .rows = rows_,
                           .heads = heads,
                           .width = spec_.head_dim,
                           .gradient = gradient(role, layer)});
  }

  // d_h = d_h + the gradient of norm(h), whose output has the gradient d_normed.
  void norm(float* norm_gradient, const float* weight, const float* x) {
    run("norm backward", kernels_.norm_backward,
        NormBackwardParams{.dy = ws_.normed.data(),
                           .x = x,
                           .weight = weight,
                           .eps = spec_.norm_eps,
                           .rows = rows_,
                           .width = spec_.hidden,
                           .dx = d_hidden(),
                           .rs = ws_.rs.data()});
    run("norm gradient", kernels_.norm_gradient,
        NormGradientParams{.dy = ws_.normed.data(),
                           .dy_stride = spec_.hidden,
                           .x = x,
                           .x_stride = spec_.hidden,
                           .rs = ws_.rs.data(),
                           .rs_stride = 1,
                           .rows = rows_,
                           .heads = 1,
                           .width = spec_.hidden,
                           .gradient = norm_gradient});
  }

  // h = rows of the embedding
  void embed(float* embedding_gradient) {
    run("embed gradient", kernels_.embed_gradient,
        EmbedGradientParams{.tokens = tables_.tokens,
                            .dx = d_hidden(),
                            .rows = rows_,
                            .width = spec_.hidden,
                            .gradient = embedding_gradient});
  }

  // A layer's activations, which the tape has not kept, from the residual stream before it.
  void forward_again(const Batch& batch, int layer, float* before) {
    Batch one = batch;
    one.layer_begin = layer;
    one.layer_end = layer + 1;
    one.aux_layers.clear();
    ForwardIo io;
    io.tape = io_.tape;
    io.times = io_.times;
    io.hidden = {before, static_cast<size_t>(rows_ * spec_.hidden)};
    forward(model_, one, kv_, *io_.forward_workspace, solo_group(), io);
  }

  // One operation on the whole team.
  template <typename Params>
  void run(const char* name, Operation<Params> operation, const Params& params) {
    timed(io_.times, name, [&] { model_.run(operation, params); });
  }

  // y = x * w, every row and output.
  void matmul(const char* name, const Activation& x, const Matrix& w, float* y) {
    run(name, model_.kernels.matmul,
        MatmulParams{.x = x,
                     .w = w,
                     .rows = rows_,
                     .runs = 1,
                     .bias = nullptr,
                     .accumulate = false,
                     .y = y,
                     .y_stride = w.n});
  }

  Activation round(const float* x, int64_t width, const DeviceArray<bf16_t>& memory) {
    const Activation out = activation(memory, width);
    run("round", kernels_.round,
        RoundParams{.x = x, .x_stride = width, .rows = rows_, .width = width, .out = out});
    return out;
  }

  // The inputs of a product as the packed side of its weight gradient.
  void pack_inputs(const Activation& x, int64_t width) {
    run("pack inputs", kernels_.pack_columns,
        PackColumnsParams{.x = static_cast<const bf16_t*>(x.data),
                          .x_stride = x.stride,
                          .rows = rows_,
                          .width = width,
                          .inner = {0, rows_},
                          .inner_size = rows_,
                          .out = ws_.packed.data()});
  }

  // The gradient of a weight [columns][inputs] from that of its outputs and the packed inputs.
  void weight_gradient(const char* name, float* out, const Activation& dy, Columns columns,
                       int64_t inputs) {
    const Activation transposed{ws_.transposed.data(), DType::bf16, activation_stride(rows_)};
    run("transpose", kernels_.transpose,
        TransposeParams{.x = dy, .rows = rows_, .columns = columns, .out = transposed});
    const Matrix packed{ws_.packed.data(), DType::bf16, inputs, rows_};
    // The first batch's chains begin with +0 whatever `out` holds.
    run(name, io_.begins ? model_.kernels.matmul : kernels_.extend_matmul,
        MatmulParams{.x = transposed,
                     .w = packed,
                     .rows = columns.count,
                     .runs = 1,
                     .bias = nullptr,
                     .accumulate = false,
                     .y = out,
                     .y_stride = inputs});
  }

  void bias_gradient(TensorRole role, int layer, const Activation& dy, Columns columns) {
    if (layout_.offset(role, layer) < 0) return;
    run("bias gradient", kernels_.bias_gradient,
        BiasGradientParams{
            .dy = dy, .rows = rows_, .columns = columns, .gradient = gradient(role, layer)});
  }

  float* gradient(TensorRole role, int layer) const {
    return io_.gradients + layout_.offset(role, layer);
  }
  float* d_hidden() const { return ws_.hidden.data(); }
  void clear_hidden() { std::memset(d_hidden(), 0, rows_ * spec_.hidden * sizeof(float)); }
  static Activation activation(const DeviceArray<bf16_t>& memory, int64_t width) {
    return {memory.data(), DType::bf16, activation_stride(width)};
  }

  Decoder& model_;
  const DecoderSpec& spec_;
  const TransposedWeights& transposed_;
  const TrainingKernels& kernels_;
  const ParameterLayout& layout_;
  const Batch& batch_;
  KvStorage& kv_;
  BackwardWorkspace& ws_;
  BackwardIo& io_;
  const int64_t rows_, qkv_width_, pair_width_;
  StepTables tables_;
};

void backward(Decoder& decoder, const TransposedWeights& transposed, const TrainingKernels& kernels,
              const ParameterLayout& layout, const Batch& batch, KvStorage& kv,
              BackwardWorkspace& workspace, BackwardIo& io) {
  ScopedFlushToZero flush;
  BackwardPass(decoder, transposed, kernels, layout, batch, kv, workspace, io).run();
}

}  // namespace invar
