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
  for (const LayerSpec& layer : spec.layer_specs) f = std::max<int64_t>(f, layer.ffn.width);
  const int64_t rows = max_rows, d = spec.hidden, q = spec.query_width();
  const int64_t qkv_width = q + 2 * spec.kv_width(), pair = 2 * round_up(f, kPanelWidth);
  const int64_t widest = std::max({qkv_width, pair, q});
  const int64_t inputs = std::max({d * (1 + spec.mtp_layers), q, f}),
                outputs = std::max<int64_t>({widest, d, spec.vocab});
  const auto size = [](int64_t x) { return static_cast<size_t>(x); };
  hidden = {device, size(rows * d), what};
  normed = {device, size(rows * d), what};
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
}

}  // namespace invar
