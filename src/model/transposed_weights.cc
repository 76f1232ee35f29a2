#include "model/transposed_weights.h"

namespace invar {

namespace {

// One after the other, the tensors that stand in one of a layer's matrices: `use` gets the row of
// each, its columns among the matrix's outputs, and the number of those so far.
template <typename Use>
void for_each_part(const DecoderSpec& spec, int layer, Use use) {
  Matrix LayerMatrices::*target = nullptr;
  int64_t outputs = 0;
  int parts = 0;
  for (const TensorRow* row : layer_tensors(spec, layer)) {
    if (!row->matrix || row->matrix == &LayerMatrices::projection || is_of_each(row->cut)) continue;
    if (row->matrix != target) outputs = parts = 0;
    target = row->matrix;
    const int64_t count = extent_of(row->rows, spec, layer);
    const bool is_alone = target == &LayerMatrices::gate_up && !spec.layer(layer).ffn.is_gated;
    const bool is_pair = holds_pairs(target) && !is_alone;
    const Columns columns = is_pair ? Columns{0, count, parts} : Columns{outputs, count};
    outputs += is_pair ? round_up(count, kPanelWidth) : count;
    ++parts;
    use(*row, columns, outputs);
  }
}

}  // namespace

TransposedWeights::TransposedWeights(const DecoderSpec& spec, Device& device) : spec_(spec) {
  for (int i = 0; i < spec.all_layers(); ++i) {
    LayerMatrices& layer = layers_.emplace_back();
    for_each_part(spec, i, [&](const TensorRow& row, const Columns&, int64_t outputs) {
      (layer.*row.matrix).n = extent_of(row.columns, spec, i);
      (layer.*row.matrix).k = outputs;
    });
    for (const auto matrix : {&LayerMatrices::qkv, &LayerMatrices::o, &LayerMatrices::gate_up,
                              &LayerMatrices::down, &LayerMatrices::router})
      if ((layer.*matrix).n > 0)
        layer.*matrix = allocate(device, (layer.*matrix).n, (layer.*matrix).k);
    if (const auto experts = spec.layer(i).experts) {
      const int64_t count = experts->routing.experts, d = spec.hidden, f = experts->width;
      layer.expert_gate_up = allocate(device, d, 2 * round_up(f, kPanelWidth), count);
      layer.expert_down = allocate(device, f, d, count);
    }
  }
  const int64_t d = spec.hidden;
  head_ = allocate(device, d, spec.vocab);
  if (spec.mtp_layers == 0) return;
  mtp_embedding_ = allocate(device, d, d);
  mtp_hidden_ = allocate(device, d, d);
}

Matrix TransposedWeights::allocate(Device& device, int64_t n, int64_t k, int64_t count) {
  Matrix w{.type = DType::bf16, .n = n, .k = k, .count = count};
  memory_.emplace_back(device, static_cast<size_t>(w.elements()), "the transposed weights");
  w.data = memory_.back().data();
  return w;
}

void TransposedWeights::update(const bf16_t* weights, const ParameterLayout& layout,
                               const TrainingKernels& kernels, const Execution& on) {
  // Columns [first, first + to.n) of a matrix of `width` columns, its rows as elements `inner`.
  const auto pack = [&](TensorRole role, int layer, int64_t width, int64_t first, Columns inner,
                        const Matrix& to, int expert = 0) {
    const int64_t of_expert = expert * round_up(inner.count * width, kPanelWidth);
    on.run(kernels.pack_columns,
           PackColumnsParams{.x = weights + layout.offset(role, layer) + of_expert + first,
                             .x_stride = width,
                             .rows = inner.count,
                             .width = to.n,
                             .inner = inner,
                             .inner_size = to.k,
                             .out = static_cast<bf16_t*>(const_cast<void*>(to.data))});
  };
  for (int layer = 0; layer < spec_.all_layers(); ++layer)
    for_each_part(spec_, layer, [&](const TensorRow& row, const Columns& inner, int64_t) {
      const Matrix& to = layers_[layer].*row.matrix;
      pack(row.role, layer, to.n, 0, inner, to);
    });
  for (int layer = 0; layer < spec_.layers; ++layer)
    if (const auto experts = spec_.layer(layer).experts)
      for (int e = 0; e < experts->routing.experts; ++e) {
        const int64_t f = experts->width;
        const Matrix both = layers_[layer].expert_gate_up.part(e, 1);
        pack(TensorRole::expert_gate, layer, spec_.hidden, 0, {0, f, 0}, both, e);
        pack(TensorRole::expert_up, layer, spec_.hidden, 0, {0, f, 1}, both, e);
        pack(TensorRole::expert_down, layer, f, 0, {0, spec_.hidden},
             layers_[layer].expert_down.part(e, 1), e);
      }
  const int64_t d = spec_.hidden;
  if (spec_.mtp_layers > 0) {
    pack(TensorRole::projection, spec_.layers, 2 * d, 0, {0, d}, mtp_embedding_);
    pack(TensorRole::projection, spec_.layers, 2 * d, d, {0, d}, mtp_hidden_);
  }
  pack(spec_.tied_head ? TensorRole::embedding : TensorRole::head, -1, d, 0, {0, spec_.vocab},
       head_);
}

}  // namespace invar
