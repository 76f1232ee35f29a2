#include "model/backward_workspace.h"

#include <algorithm>

namespace invar {

StateWidths StateWidths::of(const LayerSpec& layer, int64_t hidden) {
  if (layer.find<ShortConvSpec>()) return {.inputs = 3 * hidden, .mixed = hidden};
  const auto of_heads = [](int64_t keys, int64_t heads, int64_t key_size, int64_t value_size) {
    const int64_t values = heads * value_size, mixed = 2 * keys * key_size + values;
    return StateWidths{mixed + values, mixed,      values, heads,
                       key_size,       value_size, heads,  2 * heads};
  };
  if (const auto* c = layer.find<ChannelDeltaSpec>()) {
    StateWidths widths = of_heads(c->heads, c->heads, c->size, c->size);
    widths.decays = widths.values;
    widths.gates = 2 * int64_t{c->size} + c->heads;
    return widths;
  }
  if (const auto* r = layer.find<RecurrentSpec>())
    return of_heads(r->key_heads, r->heads, r->key_size, r->value_size);
  if (const auto* s = layer.find<StateSpaceSpec>())
    return of_heads(s->groups, s->heads, s->state_size, s->head_size);
  return {};
}

StateWidths StateWidths::widest(const DecoderSpec& spec) {
  StateWidths most;
  for (const LayerSpec& layer : spec.layer_specs) {
    const StateWidths one = of(layer, spec.hidden);
    for (const auto width : {&StateWidths::inputs, &StateWidths::mixed, &StateWidths::values,
                             &StateWidths::heads, &StateWidths::key_size, &StateWidths::value_size,
                             &StateWidths::decays, &StateWidths::gates})
      most.*width = std::max(most.*width, one.*width);
  }
  return most;
}

LatentWidths LatentWidths::widest(const DecoderSpec& spec) {
  LatentWidths most;
  for (const LayerSpec& layer : spec.layer_specs) {
    if (!layer.attention() || !layer.attention()->latent) continue;
    const LatentSpec& l = *layer.attention()->latent;
    const int64_t queries = int64_t{spec.heads} * (l.nope + l.rope);
    const int64_t made_of = l.query_rank ? l.query_rank : queries;
    most.heads = std::max({most.heads, queries, int64_t{spec.heads} * l.value});
    most.normed = std::max<int64_t>({most.normed, l.rank, l.query_rank});
    most.down = std::max(most.down, made_of + l.rank + l.rope);
  }
  return most;
}

BackwardWorkspace::BackwardWorkspace(const Decoder& decoder, const TrainingKernels& kernels,
                                     int max_rows, int max_positions, int adapter_rank)
    : max_rows(max_rows), max_positions(max_positions) {
  const DecoderSpec& spec = decoder.spec;
  Device& device = decoder.device();
  const char* what = "a backward pass";
  int64_t f = 0;  // of the widest
  int64_t experts = 0;
  for (const LayerSpec& layer : spec.layer_specs) {
    f = std::max<int64_t>(f, layer.ffn_width());
    if (!layer.experts()) continue;
    f = std::max<int64_t>({f, layer.experts()->width, layer.experts()->shared_width});
    experts = std::max<int64_t>(experts, layer.experts()->routing.experts + 1);
  }
  const int64_t rows = max_rows, d = spec.hidden, q = spec.query_width();
  const int64_t qkv_width = q + 2 * spec.kv_width(), pair = 2 * round_up(f, kPanelWidth);
  const StateWidths states = StateWidths::widest(spec);
  const LatentWidths latents = LatentWidths::widest(spec);
  const int64_t widest = std::max({qkv_width, pair, q, states.inputs, latents.heads, latents.down});
  const int64_t inputs = std::max<int64_t>({d * (1 + spec.mtp_layers), q, f, states.mixed,
                                            latents.heads, latents.normed, adapter_rank}),
                outputs = std::max<int64_t>({widest, d, spec.vocab, experts, adapter_rank});
  const auto size = [](int64_t x) { return static_cast<size_t>(x); };
  hidden = {device, size(rows * d), what};
  normed = {device, size(rows * d), what};
  if (const DenseFfnSpec* ffn = spec.first<DenseFfnSpec>(); ffn && ffn->is_parallel)
    beside = {device, size(rows * d), what};
  gated = {device, size(rows * f), what};
  attended = {device, size(rows * std::max(q, latents.heads)), what};
  qkv = {device, size(rows * qkv_width), what};
  rs = {device, size(rows * (spec.heads + spec.kv_heads)), what};
  out = {device, size(rows * activation_stride(d)), what};
  wide = {device, size(rows * activation_stride(widest)), what};
  transposed = {device, size(outputs * activation_stride(rows)), what};
  packed = {device, size(round_up(inputs, kPanelWidth) * rows), what};
  scratch_stride = kernels.attention_scratch(max_positions, spec.head_dim);
  if (states.heads > 0)
    scratch_stride =
        std::max(scratch_stride,
                 kernels.recurrence_scratch(max_positions, states.key_size, states.value_size));
  scratch = {device, size(scratch_stride * decoder.execution.team()), what};
  place_experts(decoder);
  place_states(decoder, states);
  if (latents.down > 0) place_latents(decoder, latents);
}

void BackwardWorkspace::place_latents(const Decoder& decoder, const LatentWidths& widest) {
  const auto array = [&](DeviceArray<float>& to, int64_t width) {
    to = {decoder.device(), static_cast<size_t>(max_rows * width), "a backward pass"};
  };
  const DecoderSpec& spec = decoder.spec;
  array(apart, spec.query_width() + 2 * spec.kv_width());
  array(latent_normed, widest.normed);
  array(latent, widest.normed);
  array(down, widest.down);
}

void BackwardWorkspace::place_states(const Decoder& decoder, const StateWidths& widest) {
  const auto array = [&]<typename T>(DeviceArray<T>& to, int64_t width) {
    to = {decoder.device(), static_cast<size_t>(max_rows * width), "a backward pass"};
  };
  const AttentionSpec* attention = decoder.spec.first<AttentionSpec>();
  if (attention && attention->has_output_gate) array(output_gates, decoder.spec.query_width());
  if (widest.inputs == 0) return;
  array(mixed, widest.mixed);
  array(sums, widest.mixed);
  array(inputs, widest.inputs);
  if (widest.heads == 0) return;
  for (DeviceArray<float>* of_values : {&recurred, &head_normed, &head_inputs})
    array(*of_values, widest.values);
  for (DeviceArray<float>* of_heads : {&head_rs, &factors, &rates, &skips})
    array(*of_heads, widest.heads);
  array(decays, widest.decays);
  array(gates, widest.gates);
  array(narrow, activation_stride(widest.gates));
}

void BackwardWorkspace::place_experts(const Decoder& decoder) {
  int64_t f = 0, pairs = 0, experts = 0;
  for (const LayerSpec& layer : decoder.spec.layer_specs) {
    if (!layer.experts()) continue;
    f = std::max<int64_t>(f, layer.experts()->width);
    pairs = std::max<int64_t>(pairs, int64_t{max_rows} * layer.experts()->routing.chosen);
    experts = std::max<int64_t>(experts, layer.experts()->routing.experts + 1);
  }
  if (experts == 0) return;
  const int64_t d = decoder.spec.hidden, both = 2 * round_up(f, kPanelWidth);
  const auto array = [&]<typename T>(DeviceArray<T>& to, int64_t count) {
    to = {decoder.device(), static_cast<size_t>(count), "a backward pass"};
  };
  array(pair_outputs, pairs * activation_stride(d));
  array(pair_gated, pairs * f);
  array(pair_dots, pairs * both);
  array(pair_wide, pairs * activation_stride(both));
  array(pair_inputs, pairs * d);
  array(expert_weights, pairs);
  array(router, max_rows * activation_stride(experts));
  array(shared_gates, max_rows);
  array(leaf_outputs, max_rows * activation_stride(std::max(d, both)));
  array(leaf_inputs, max_rows * activation_stride(std::max(d, f)));
}

}  // namespace invar
