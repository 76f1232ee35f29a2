// The backward of heads with states between a layer's two products (numerics 9).
#include "kernels/recurrent_backward.h"
#include "model/parts/recurrent_heads.h"

namespace invar {

using enum TensorRole;

void RecurrentHeads::output_backward(BackwardPass& b, int layer, const Activation& gated,
                                     const Product& o) const {
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = b.spec().hidden;
  const Activation d_out = b.round(b.d_hidden(), d, ws.out);
  b.matmul("o dX", d_out, o.transposed, ws.mixed.data());
  b.adapter(o.w, gated, o.split_k, d_out, ws.mixed.data());
  b.pack_inputs(gated, values());
  b.weight_gradient("o dW", b.gradient(recurrent_o, layer), d_out, {0, d}, values());
}

void RecurrentHeads::norm_backward(BackwardPass& b, int layer, const GatedNormParams& norm) const {
  const BackwardWorkspace& ws = b.workspace();
  b.run("gated norm backward", b.kernels().gated_norm_backward,
        GatedNormBackwardParams{.forward = norm,
                                .d_out = ws.mixed.data(),
                                .dx = ws.recurred.data(),
                                .d_gate = ws.inputs.data() + mixed(),
                                .d_gate_stride = mixed() + values(),
                                .d_normed = ws.head_normed.data(),
                                .normed = ws.head_inputs.data(),
                                .rs = ws.head_rs.data()});
  float* gradient = b.gradient(head_norm, layer);
  if (!gradient) return;
  // Groups with weights of their own are norms of their own.
  const int64_t norms = norm.own_weights ? norm.groups : 1, groups = norm.groups / norms;
  for (int64_t i = 0; i < norms; ++i)
    b.run("norm gradient", b.kernels().norm_gradient,
          NormGradientParams{.dy = ws.head_normed.data() + i * norm.width,
                             .dy_stride = values(),
                             .x = ws.head_inputs.data() + i * norm.width,
                             .x_stride = values(),
                             .rs = ws.head_rs.data() + i,
                             .rs_stride = norm.groups,
                             .rows = b.rows(),
                             .heads = groups,
                             .width = norm.width,
                             .gradient = gradient + i * norm.width});
}

namespace {

// gradient += the sum over rows of x, or of x * y. Nothing of a frozen tensor.
void add_rows(BackwardPass& b, float* gradient, const float* x, int64_t x_stride, int64_t count,
              const float* y = nullptr) {
  if (!gradient) return;
  b.run("row sums", b.kernels().row_sums,
        RowSumsParams{.x = x,
                      .x_stride = x_stride,
                      .y = y,
                      .y_stride = count,
                      .rows = b.rows(),
                      .count = count,
                      .gradient = gradient});
}

}  // namespace

void RecurrentHeads::recur_backward(BackwardPass& b, int layer, const RecurrentArrays& at,
                                    const Gates& gates, const float* skips) const {
  const BackwardWorkspace& ws = b.workspace();
  const CellTables& cells = b.tables().cells;
  float* d_mixed = ws.mixed.data();
  b.run("recurrence backward", b.kernels().recurrence_backward,
        RecurrenceBackwardParams{.kind = kind,
                                 .key_heads = key_heads,
                                 .heads = heads,
                                 .key_size = key_size,
                                 .value_size = value_size,
                                 .q = at.q,
                                 .k = at.k,
                                 .v = static_cast<const float*>(at.mixed.data) + 2 * keys(),
                                 .v_stride = at.mixed.stride,
                                 .decays = at.decays,
                                 .factors = at.factors,
                                 .skips = skips,
                                 .sequence_begin = cells.sequence_begin,
                                 .sequences = cells.sequences,
                                 .d_out = ws.recurred.data(),
                                 .d_out_stride = values(),
                                 .dq = d_mixed,
                                 .dk = d_mixed + keys(),
                                 .dv = d_mixed + 2 * keys(),
                                 .d_stride = mixed(),
                                 .d_decays = ws.decays.data(),
                                 .d_factors = ws.factors.data(),
                                 .d_skips = skips ? ws.skips.data() : nullptr,
                                 .scratch = ws.scratch.data(),
                                 .scratch_stride = ws.scratch_stride,
                                 .max_positions = ws.max_positions,
                                 .matmul = b.forward_kernels().matmul});
  if (kind != Recurrence::state_space) keys_backward(b, at);
  gates_backward(b, layer, at, gates);
  if (skips) add_rows(b, b.gradient(skip, layer), ws.skips.data(), heads, heads);
}

int64_t RecurrentHeads::gates_width() const {
  if (kind == Recurrence::channel_delta) return 2 * key_size + heads;
  return kind == Recurrence::delta ? 2 * heads : heads;
}

RecurrentHeads::GateGradients RecurrentHeads::gate_gradients(const BackwardWorkspace& ws) const {
  float* gates = ws.gates.data();
  const int64_t width = gates_width();
  if (kind == Recurrence::channel_delta)
    return {ws.decays.data(), heads * channels(), gates + 2 * key_size, width};
  if (kind == Recurrence::delta) return {gates + heads, width, gates, width};
  return {gates, width, nullptr, 0};
}

void RecurrentHeads::gates_backward(BackwardPass& b, int layer, const RecurrentArrays& at,
                                    const Gates& gates) const {
  const BackwardWorkspace& ws = b.workspace();
  const GateGradients to = gate_gradients(ws);
  const bool has_channels = kind == Recurrence::channel_delta;
  b.run("recurrent gates backward", b.kernels().recurrent_gates_backward,
        RecurrentGatesBackwardParams{.forward = gates_of(b.rows(), at, gates),
                                     .d_decays = ws.decays.data(),
                                     .d_factors = ws.factors.data(),
                                     .d_rates = has_channels ? ws.rates.data() : nullptr,
                                     .da = to.a,
                                     .da_stride = to.a_stride,
                                     .dz = to.z,
                                     .dz_stride = to.z_stride});
  add_rows(b, b.gradient(decay_bias, layer), to.a, to.a_stride, heads * channels());
  if (has_channels)
    add_rows(b, b.gradient(decay_rate, layer), ws.rates.data(), heads, heads);
  else
    add_rows(b, b.gradient(decay_rate, layer), ws.decays.data(), heads, heads, at.decays);
}

// Keys and queries of length 1 from those that the convolution left.
void RecurrentHeads::keys_backward(BackwardPass& b, const RecurrentArrays& at) const {
  const float* x = static_cast<const float*>(at.mixed.data);
  for (const bool is_key : {false, true})
    b.run("recurrent keys backward", b.kernels().recurrent_keys_backward,
          RecurrentKeysBackwardParams{.x = x + (is_key ? keys() : 0),
                                      .x_stride = at.mixed.stride,
                                      .d = b.workspace().mixed.data() + (is_key ? keys() : 0),
                                      .d_stride = mixed(),
                                      .rows = b.rows(),
                                      .heads = key_heads,
                                      .key_size = key_size,
                                      .eps = kKeyEps,
                                      .scale = is_key ? 1.0f : query_scale()});
}

void RecurrentHeads::conv_backward(BackwardPass& b, int layer,
                                   const Convolution& convolution) const {
  const BackwardWorkspace& ws = b.workspace();
  struct Channels {
    TensorRole taps, bias;
    int64_t first, count;
  };
  for (const auto& [role, bias, first, count] : {Channels{conv_q, conv_q_bias, 0, keys()},
                                                 {conv_k, conv_k_bias, keys(), keys()},
                                                 {conv_v, conv_v_bias, 2 * keys(), values()}})
    b.run("short conv backward", b.kernels().short_conv_backward,
          ShortConvBackwardParams{.x = convolution.x + first,
                                  .x_stride = convolution.x_stride,
                                  .factor = nullptr,
                                  .factor_stride = 0,
                                  .positions = b.tables().positions,
                                  .rows = b.rows(),
                                  .channels = count,
                                  .taps = taps,
                                  .weight = convolution.weight + first,
                                  .weight_stride = mixed(),
                                  .bias = convolution.bias ? convolution.bias + first : nullptr,
                                  .silu = true,
                                  .gate = nullptr,
                                  .gate_stride = 0,
                                  .d_out = ws.mixed.data() + first,
                                  .d_out_stride = mixed(),
                                  .d_sum = ws.sums.data() + first,
                                  .d_sum_stride = mixed(),
                                  .dx = ws.inputs.data() + first,
                                  .d_factor = nullptr,
                                  .d_gate = nullptr,
                                  .dx_stride = mixed() + values(),
                                  .d_weight = b.gradient(role, layer),
                                  .d_weight_stride = tap_step(count),
                                  .d_bias = convolution.bias ? b.gradient(bias, layer) : nullptr});
}

void RecurrentHeads::inputs_backward(BackwardPass& b, int layer, const Activation& normed,
                                     const Product& inputs, const Product& gates) const {
  const BackwardWorkspace& ws = b.workspace();
  const int64_t width = b.spec().hidden;
  const Activation d_inputs = b.round(ws.inputs.data(), mixed() + values(), ws.wide);
  const Activation d_gates = b.round(ws.gates.data(), gates_width(), ws.narrow);
  b.matmul("recurrent inputs dX", d_inputs, inputs.transposed, ws.normed.data());
  b.adapter(inputs.w, normed, inputs.split_k, d_inputs, ws.normed.data());
  b.matmul("recurrent gates dX", d_gates, gates.transposed, ws.normed.data(), true);
  b.adapter(gates.w, normed, gates.split_k, d_gates, ws.normed.data());
  b.pack_inputs(normed, width);
  const auto add = [&](TensorRole role, const Activation& d, Columns columns) {
    b.weight_gradient("recurrent inputs dW", b.gradient(role, layer), d, columns, width);
  };
  add(recurrent_q, d_inputs, {0, keys()});
  add(recurrent_k, d_inputs, {keys(), keys()});
  add(recurrent_v, d_inputs, {2 * keys(), values()});
  add(recurrent_gate, d_inputs, {mixed(), values()});
  if (gates_width() > heads) add(recurrent_factor, d_gates, {0, heads});
  add(recurrent_decay, d_gates, {gates_width() - heads, heads});
}

}  // namespace invar
