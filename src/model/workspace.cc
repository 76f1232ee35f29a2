#include "model/workspace.h"

#include <algorithm>

namespace invar {

namespace {

size_t activation_bytes(const Decoder& decoder, int rows, int64_t width) {
  return static_cast<size_t>(rows * activation_stride(width) * size_of(decoder.arithmetic.type()));
}

}  // namespace

Workspace::Workspace(const Decoder& decoder, int max_rows, int max_logit_rows, int max_taps)
    : max_rows_(max_rows), max_logit_rows_(max_logit_rows), max_taps_(max_taps) {
  const DecoderSpec& spec = decoder.spec;
  const Shard& shard = decoder.weights->shard();
  Device& device = decoder.device();
  const char* what = "a step's activations";
  const size_t rows = static_cast<size_t>(max_rows), e = static_cast<size_t>(spec.head_dim);
  const size_t head_rows = static_cast<size_t>(shard.heads + 2 * shard.kv_heads);

  hidden_ = {device, rows * spec.hidden, what};
  qkv_ = {device, rows * head_rows * e, what};
  q_ = {device, rows * shard.heads * round_up(spec.head_dim, 32), what};
  normed_ = {device, activation_bytes(decoder, std::max(max_rows, max_logit_rows), spec.hidden),
             what};
  attended_ = {device, activation_bytes(decoder, max_rows, shard.heads * spec.head_dim), what};
  gated_ = {device, activation_bytes(decoder, max_rows, shard.ffn), what};
  non_finite_ = {device, rows, what};
  logits_ = {device, size_t(max_logit_rows) * spec.vocab, what};
  if (spec.mtp_layers > 0) {
    embedded_ = {device, rows * spec.hidden, what};
    joined_ = {device, activation_bytes(decoder, max_rows, 2 * int64_t{spec.hidden}), what};
  }
  if (shard.size > 1) {
    partial_ = {device, rows * spec.hidden, what};
    rank_logits_ = {device, size_t(max_logit_rows) * shard.vocab_stride * (1 + shard.size), what};
  }

  host_non_finite_ = {device, rows, what};
  host_taps_ = {device, rows * spec.hidden * max_taps, what};
  if (device.is_host()) return;
  host_hidden_ = {device, rows * spec.hidden, what};
  host_logits_ = {device, size_t(max_logit_rows) * spec.vocab, what};
}

size_t Workspace::bytes() const {
  const auto floats = {&hidden_, &qkv_, &partial_, &rank_logits_, &logits_, &embedded_};
  size_t total = q_.size() * sizeof(bf16_t);
  for (const DeviceArray<float>* array : floats) total += array->size() * sizeof(float);
  for (const auto* array : {&normed_, &attended_, &gated_, &joined_}) total += array->size();
  return total;
}

std::span<float> Workspace::fetch(const Execution& on, const DeviceArray<float>& from,
                                  const PinnedArray<float>& copy, int64_t count) {
  const size_t size = static_cast<size_t>(count);
  if (on.device->is_host()) return {from.data(), size};
  on.stream->download(copy.data(), from.data(), size * sizeof(float));
  return {copy.data(), size};
}

}  // namespace invar
