#include "model/tape.h"

#include "base/check.h"

namespace invar {

namespace {}

template <typename T>
T* Tape::allocate(Device& device, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  memory_.emplace_back(device, bytes, "the activations kept for training");
  bytes_ += bytes;
  return reinterpret_cast<T*>(memory_.back().data());
}

Activation Tape::activation(const Decoder& decoder, int64_t width) {
  const int64_t stride = activation_stride(width);
  return {allocate<bf16_t>(decoder.device(), max_rows_ * stride), DType::bf16, stride};
}

Tape::Tape(const Decoder& decoder, const TrainingKernels& kernels, int max_rows, bool recompute)
    : kernels_(&kernels), max_rows_(max_rows), recompute_(recompute) {
  const DecoderSpec& spec = decoder.spec;
  Device& device = decoder.device();
  CHECK(decoder.arithmetic.weights == DType::bf16, "training computes with bf16 weights");
  CHECK(decoder.weights->shard().size == 1, "a trainer's ranks hold whole models");
  const int64_t rows = max_rows;
  for (int i = 0; i < spec.all_layers(); ++i) {
    LayerActivations layer = recompute && i > 0 ? layers_[0] : LayerActivations{};
    layer.input = allocate<float>(device, rows * spec.hidden);
    if (!recompute || i == 0) {
      layer.normed = activation(decoder, spec.hidden);
      if (spec.qk_norm)
        layer.qkv = allocate<float>(device, rows * (spec.query_width() + 2 * spec.kv_width()));
      layer.q = allocate<bf16_t>(device, rows * spec.heads * round_up(spec.head_dim, 32));
      layer.max = allocate<float>(device, rows * spec.heads);
      layer.sum = allocate<float>(device, rows * spec.heads);
      layer.attended = activation(decoder, spec.query_width());
      layer.middle = allocate<float>(device, rows * spec.hidden);
      layer.ffn_normed = activation(decoder, spec.hidden);
      layer.gate_up = allocate<float>(device, rows * 2 * round_up(spec.ffn, kPanelWidth));
      layer.gated = activation(decoder, spec.ffn);
    }
    layers_.push_back(layer);
  }
  for (int module = 0; module <= spec.mtp_layers; ++module) {
    outputs_[module] = allocate<float>(device, rows * spec.hidden);
    final_normed_[module] = activation(decoder, spec.hidden);
  }
  if (spec.mtp_layers == 0) return;
  embedded_ = allocate<float>(device, rows * spec.hidden);
  joined_ = activation(decoder, 2 * int64_t{spec.hidden});
}

}  // namespace invar
