#include "model/workspace.h"

#include <algorithm>

namespace invar {

Workspace::Workspace(const Decoder& decoder, int max_rows, int max_logit_rows, int max_aux_layers)
    : max_rows(max_rows), max_logit_rows(max_logit_rows), max_aux_layers(max_aux_layers) {
  const DecoderSpec& spec = decoder.spec;
  const Shard& shard = decoder.weights->shard();
  Device& device = decoder.device();
  const char* what = "a step's activations";
  const size_t rows = static_cast<size_t>(max_rows), e = static_cast<size_t>(spec.head_dim);
  const size_t head_rows = static_cast<size_t>(shard.heads + 2 * shard.kv_heads);
  const DType type = decoder.arithmetic.activations();
  const auto activation = [&](DeviceArray<std::byte>& memory, int count, int64_t width) {
    const int64_t stride = activation_stride(width, decoder.kernels.weights);
    memory = {device, static_cast<size_t>(count * stride * size_of(type)), what};
    return Activation{memory.data(), type, stride};
  };

  hidden = {device, rows * spec.hidden, what};
  qkv = {device, rows * head_rows * e, what};
  q = {device, rows * shard.heads * round_up(spec.head_dim, 32), what};
  layer.q = q.data();
  layer.normed = activation(normed, std::max(max_rows, max_logit_rows), spec.hidden);
  layer.ffn_normed = layer.normed;
  layer.attended = activation(attended, max_rows, int64_t{shard.heads} * spec.head_dim);
  layer.gated = activation(gated, max_rows, shard.ffn);
  non_finite = {device, rows, what};
  if (decoder.kernels.attention_scratch)
    attention_scratch = {device, decoder.kernels.attention_scratch, what};
  logits = {device, size_t(max_logit_rows) * spec.vocab, what};
  if (spec.mtp_layers > 0) {
    embedded = {device, rows * spec.hidden, what};
    joined_rows = activation(joined, max_rows, 2 * int64_t{spec.hidden});
  }
  if (shard.size > 1) {
    partial = {device, rows * spec.hidden, what};
    rank_logits = {device, size_t(max_logit_rows) * shard.vocab_stride * (1 + shard.size), what};
  }

  host_non_finite = {device, rows, what};
  last_non_finite = {device, rows, what};
  host_aux_hidden = {device, rows * spec.hidden * max_aux_layers, what};
  if (device.is_host()) return;
  host_hidden = {device, rows * spec.hidden, what};
  host_logits = {device, size_t(max_logit_rows) * spec.vocab, what};
}

size_t Workspace::bytes() const {
  size_t total = q.size() * sizeof(bf16_t);
  for (const DeviceArray<float>* array :
       {&hidden, &qkv, &partial, &rank_logits, &logits, &embedded})
    total += array->size() * sizeof(float);
  for (const auto* array : {&normed, &attended, &gated, &joined, &attention_scratch})
    total += array->size();
  return total;
}

}  // namespace invar
