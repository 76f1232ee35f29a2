#include "model/tape.h"

#include <algorithm>

#include "base/check.h"
#include "model/activation_memory.h"
#include "model/families/family_source.h"

namespace invar {

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
  CHECK(decoder.weights->shard().size == 1, "a trainer computes whole layers");
  expect_backward(spec);
  const int64_t rows = max_rows;
  for (int layer = 0; layer < spec.all_layers(); ++layer)
    inputs_.push_back(allocate<float>(device, rows * spec.hidden));
  place_parts(decoder);
  for (int module = 0; module <= spec.mtp_layers; ++module) {
    outputs_[module] = allocate<float>(device, rows * spec.hidden);
    final_normed_[module] = activation(decoder, spec.hidden);
  }
  if (spec.mtp_layers == 0) return;
  module_input_ = allocate<float>(device, rows * spec.hidden);
  norms_module_input_ = module_reads_output(spec);
}

// Layers that are computed again use one piece of memory in turn.
void Tape::place_parts(const Decoder& decoder) {
  const auto place = [&](int layer, std::byte* memory) {
    ActivationMemory taken({.arithmetic = decoder.arithmetic,
                            .layout = decoder.kernels.weights,
                            .rows = max_rows_,
                            .is_kept = true,
                            .stream = input(layer)},
                           memory);
    LayerActivations at;
    for (const auto& part : decoder.parts[static_cast<size_t>(layer)])
      at.push_back(part->place(taken));
    if (memory) layers_.push_back(std::move(at));
    return taken.bytes();
  };
  int64_t most = 0;
  const int layers = decoder.spec.all_layers();
  for (int i = 0; i < layers; ++i) most = std::max(most, place(i, nullptr));
  std::byte* memory = nullptr;
  for (int i = 0; i < layers; ++i) {
    if (!recompute_ || i == 0)
      memory = allocate<std::byte>(decoder.device(), recompute_ ? most : place(i, nullptr));
    place(i, memory);
  }
}

}  // namespace invar
