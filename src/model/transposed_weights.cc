#include "model/transposed_weights.h"

namespace invar {

TransposedWeights::TransposedWeights(const DecoderSpec& spec, Device& device) : spec_(spec) {
  const int64_t d = spec.hidden, q = spec.query_width(), kv = spec.kv_width(), f = spec.ffn;
  for (int i = 0; i < spec.all_layers(); ++i)
    layers_.push_back({.qkv = allocate(device, d, q + 2 * kv),
                       .o = allocate(device, q, d),
                       .gate_up = allocate(device, d, 2 * round_up(f, kPanelWidth)),
                       .down = allocate(device, f, d)});
  head_ = allocate(device, d, spec.vocab);
  if (spec.mtp_layers == 0) return;
  mtp_embedding_ = allocate(device, d, d);
  mtp_hidden_ = allocate(device, d, d);
}

PackedWeight TransposedWeights::allocate(Device& device, int64_t n, int64_t k) {
  PackedWeight w{.type = DType::bf16, .n = n, .k = k};
  memory_.emplace_back(device, static_cast<size_t>(w.elements()), "the transposed weights");
  w.data = memory_.back().data();
  return w;
}

void TransposedWeights::update(const bf16_t* weights, const ParameterLayout& layout,
                               const TrainingKernels& kernels, const Execution& on) {
  using Role = TensorRole;
  const int64_t d = spec_.hidden, q = spec_.query_width(), kv = spec_.kv_width(), f = spec_.ffn;
  int layer = -1;
  // Columns [first, first + to.n) of a matrix of `width` columns.
  const auto pack_some = [&](TensorRole role, int64_t width, int64_t first, Columns inner,
                             const PackedWeight& to) {
    const PackColumnsParams params{.x = weights + layout.offset(role, layer) + first,
                                   .x_stride = width,
                                   .rows = inner.count,
                                   .width = to.n,
                                   .inner = inner,
                                   .inner_size = to.k,
                                   .out = static_cast<bf16_t*>(const_cast<void*>(to.data))};
    on.run(kernels.pack_columns, params);
  };
  const auto pack = [&](TensorRole role, int64_t width, Columns inner, const PackedWeight& to) {
    pack_some(role, width, 0, inner, to);
  };
  for (layer = 0; layer < spec_.all_layers(); ++layer) {
    const Layer& to = layers_[layer];
    pack(Role::q, d, {0, q}, to.qkv);
    pack(Role::k, d, {q, kv}, to.qkv);
    pack(Role::v, d, {q + kv, kv}, to.qkv);
    pack(Role::o, q, {0, d}, to.o);
    pack(Role::gate, d, {0, f, 0}, to.gate_up);
    pack(Role::up, d, {0, f, 1}, to.gate_up);
    pack(Role::down, f, {0, d}, to.down);
  }
  if (spec_.mtp_layers > 0) {
    layer = spec_.layers;
    pack_some(Role::mtp_projection, 2 * d, 0, {0, d}, mtp_embedding_);
    pack_some(Role::mtp_projection, 2 * d, d, {0, d}, mtp_hidden_);
  }
  layer = -1;
  pack(spec_.tied_head ? Role::embedding : Role::head, d, {0, spec_.vocab}, head_);
}

}  // namespace invar
