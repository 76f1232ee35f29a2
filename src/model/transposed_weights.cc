#include "model/transposed_weights.h"

#include <algorithm>

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

TransposedWeights::TransposedWeights(const DecoderSpec& spec, Device& device, bool in_turn)
    : spec_(spec), in_turn_(in_turn), layers_(static_cast<size_t>(spec.all_layers())) {
  std::vector<Matrices> layers;
  for (int i = 0; i < spec.all_layers(); ++i) layers.push_back(describe_layer(i));
  if (in_turn)
    share(device, layers);
  else
    for (const Matrices& layer : layers) allocate(device, layer);
  head_ = {.type = DType::bf16, .n = spec.hidden, .k = spec.vocab};
  allocate(device, {&head_});
}

// The shapes of a layer's matrices.
TransposedWeights::Matrices TransposedWeights::describe_layer(int number) {
  LayerMatrices& layer = layers_[static_cast<size_t>(number)];
  for_each_part(spec_, number, [&](const TensorRow& row, const Columns&, int64_t outputs) {
    (layer.*row.matrix).n = extent_of(row.columns, spec_, number);
    (layer.*row.matrix).k = outputs;
  });
  Matrices all{&layer.qkv, &layer.o, &layer.gate_up, &layer.down, &layer.router};
  const int64_t d = spec_.hidden;
  if (const auto experts = spec_.layer(number).experts) {
    const int64_t count = experts->routing.experts, f = experts->width;
    layer.expert_gate_up = {.n = d, .k = 2 * round_up(f, kPanelWidth), .count = count};
    layer.expert_down = {.n = f, .k = d, .count = count};
    all.insert(all.end(), {&layer.expert_gate_up, &layer.expert_down});
  }
  if (number == spec_.layers) {
    mtp_embedding_ = mtp_hidden_ = {.n = d, .k = d};
    all.insert(all.end(), {&mtp_embedding_, &mtp_hidden_});
  }
  std::erase_if(all, [](const Matrix* w) { return w->n == 0; });
  for (Matrix* w : all) w->type = DType::bf16;
  return all;
}

void TransposedWeights::allocate(Device& device, const Matrices& matrices) {
  for (Matrix* w : matrices) {
    memory_.emplace_back(device, static_cast<size_t>(w->elements()), "the transposed weights");
    w->data = memory_.back().data();
  }
}

// One after the other.
void TransposedWeights::place(bf16_t* memory, const Matrices& matrices) {
  for (Matrix* w : matrices) {
    w->data = memory;
    memory += round_up(w->elements(), kPanelWidth);
  }
}

void TransposedWeights::share(Device& device, const std::vector<Matrices>& layers) {
  int64_t most = 0;
  for (const Matrices& layer : layers) {
    int64_t size = 0;
    for (const Matrix* w : layer) size += round_up(w->elements(), kPanelWidth);
    most = std::max(most, size);
  }
  memory_.emplace_back(device, static_cast<size_t>(most), "the transposed weights");
  for (const Matrices& layer : layers) place(memory_.back().data(), layer);
}

namespace {

// Columns [first, first + to.n) of a matrix of `width` columns, its rows as elements `inner`.
class Packing {
 public:
  Packing(const TransposedWeights::Source& from, const TrainingKernels& kernels,
          const Execution& on)
      : from_(from), kernels_(kernels), on_(on) {}

  void pack(TensorRole role, int layer, int64_t width, int64_t first, Columns inner,
            const Matrix& to, int expert = 0) const {
    const int64_t of_expert = expert * round_up(inner.count * width, kPanelWidth);
    const int64_t at = from_.layout.offset(role, layer) + of_expert + first - from_.begin;
    on_.run(kernels_.pack_columns,
            PackColumnsParams{.x = from_.weights + at,
                              .x_stride = width,
                              .rows = inner.count,
                              .width = to.n,
                              .inner = inner,
                              .inner_size = to.k,
                              .out = static_cast<bf16_t*>(const_cast<void*>(to.data))});
  }

 private:
  const TransposedWeights::Source& from_;
  const TrainingKernels& kernels_;
  const Execution& on_;
};

}  // namespace

void TransposedWeights::update_layer(int layer, const Source& from, const TrainingKernels& kernels,
                                     const Execution& on) {
  if (in_turn_) clear_for(layer);
  const Packing packing(from, kernels, on);
  const LayerMatrices& own = layers_[static_cast<size_t>(layer)];
  for_each_part(spec_, layer, [&](const TensorRow& row, const Columns& inner, int64_t) {
    const Matrix& to = own.*row.matrix;
    packing.pack(row.role, layer, to.n, 0, inner, to);
  });
  const int64_t d = spec_.hidden;
  if (const auto experts = spec_.layer(layer).experts)
    for (int e = 0; e < experts->routing.experts; ++e) {
      const int64_t f = experts->width;
      const Matrix both = own.expert_gate_up.part(e, 1);
      packing.pack(TensorRole::expert_gate, layer, d, 0, {0, f, 0}, both, e);
      packing.pack(TensorRole::expert_up, layer, d, 0, {0, f, 1}, both, e);
      packing.pack(TensorRole::expert_down, layer, f, 0, {0, d}, own.expert_down.part(e, 1), e);
    }
  if (layer != spec_.layers) return;
  packing.pack(TensorRole::projection, layer, 2 * d, 0, {0, d}, mtp_embedding_);
  packing.pack(TensorRole::projection, layer, 2 * d, d, {0, d}, mtp_hidden_);
}

// Padding is zero where a layer of another shape was there before.
void TransposedWeights::clear_for(int layer) {
  const bool stays = last_layer_ >= 0 && are_alike(spec_, last_layer_, layer);
  last_layer_ = layer;
  if (!stays) std::fill_n(memory_.front().data(), memory_.front().size(), bf16_t{});
}

void TransposedWeights::update_head(const Source& from, const TrainingKernels& kernels,
                                    const Execution& on) {
  Packing(from, kernels, on)
      .pack(spec_.tied_head ? TensorRole::embedding : TensorRole::head, -1, spec_.hidden, 0,
            {0, spec_.vocab}, head_);
}

void TransposedWeights::update(const bf16_t* weights, const ParameterLayout& layout,
                               const TrainingKernels& kernels, const Execution& on) {
  const Source from{weights, layout};
  for (int layer = 0; layer < spec_.all_layers(); ++layer) update_layer(layer, from, kernels, on);
  update_head(from, kernels, on);
}

}  // namespace invar
