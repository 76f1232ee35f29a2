#include "model/backward_workspace.h"

#include <algorithm>

namespace invar {

BackwardWorkspace::BackwardWorkspace(const Decoder& decoder, const TrainingKernels& kernels,
                                     int max_rows, int max_positions)
    : max_rows(max_rows), max_positions(max_positions) {
  const DecoderSpec& spec = decoder.spec;
  Device& device = decoder.device();
  const char* what = "a backward pass";
  int64_t f = 0;  // of the widest
  int64_t experts = 0;
  for (const LayerSpec& layer : spec.layer_specs) {
    f = std::max<int64_t>({f, layer.ffn_width(), layer.experts() ? layer.experts()->width : 0});
    if (layer.experts()) experts = std::max<int64_t>(experts, layer.experts()->routing.experts);
  }
  const int64_t rows = max_rows, d = spec.hidden, q = spec.query_width();
  const int64_t qkv_width = q + 2 * spec.kv_width(), pair = 2 * round_up(f, kPanelWidth);
  const int64_t widest = std::max({qkv_width, pair, q});
  const int64_t inputs = std::max({d * (1 + spec.mtp_layers), q, f}),
                outputs = std::max<int64_t>({widest, d, spec.vocab, experts});
  const auto size = [](int64_t x) { return static_cast<size_t>(x); };
  hidden = {device, size(rows * d), what};
  normed = {device, size(rows * d), what};
  if (const DenseFfnSpec* ffn = spec.first<DenseFfnSpec>(); ffn && ffn->is_parallel)
    beside = {device, size(rows * d), what};
  gated = {device, size(rows * f), what};
  attended = {device, size(rows * q), what};
  qkv = {device, size(rows * qkv_width), what};
  rs = {device, size(rows * (spec.heads + spec.kv_heads)), what};
  out = {device, size(rows * activation_stride(d)), what};
  wide = {device, size(rows * activation_stride(widest)), what};
  transposed = {device, size(outputs * activation_stride(rows)), what};
  packed = {device, size(round_up(inputs, kPanelWidth) * rows), what};
  scratch_stride = kernels.attention_scratch(max_positions, spec.head_dim);
  scratch = {device, size(scratch_stride * decoder.execution.team()), what};
  place_experts(decoder);
}

void BackwardWorkspace::place_experts(const Decoder& decoder) {
  int64_t f = 0, pairs = 0, experts = 0;
  for (const LayerSpec& layer : decoder.spec.layer_specs) {
    if (!layer.experts()) continue;
    f = std::max<int64_t>(f, layer.experts()->width);
    pairs = std::max<int64_t>(pairs, int64_t{max_rows} * layer.experts()->routing.chosen);
    experts = std::max<int64_t>(experts, layer.experts()->routing.experts);
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
  array(leaf_outputs, max_rows * activation_stride(std::max(d, both)));
  array(leaf_inputs, max_rows * activation_stride(std::max(d, f)));
}

}  // namespace invar
