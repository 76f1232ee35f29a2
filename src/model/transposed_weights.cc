#include "model/transposed_weights.h"

#include <algorithm>

#include "model/families/tensor_table.h"

namespace invar {

namespace {

// The columns of a row's tensor among the inputs of the transposed matrix.
Columns columns_of(const TensorRow& row, bool is_pair, int number, int64_t before) {
  return is_pair ? Columns{0, row.rows.size, number} : Columns{before, row.rows.size};
}

int64_t inputs_of(const TensorRow& row, bool is_pair) {
  return is_pair ? round_up(row.rows.size, kPanelWidth) : row.rows.size;
}

}  // namespace

// The shapes of a layer's matrices, and what goes into them.
class TransposedWeights::Visitor : public TensorVisitor {
 public:
  Visitor(Targets& targets, WeightLayout layout) : targets_(targets), layout_(layout) {}

  void vector(const float*&, const std::vector<TensorRow>&, const Each*) override {}
  void matrix(Matrix& to, const std::vector<TensorRow>& rows, MatrixForm form) override {
    int64_t inputs = 0;
    for (const TensorRow& row : rows) inputs += inputs_of(row, form.is_pair);
    to = {.type = DType::bf16,
          .n = rows[0].columns.size,
          .k = inputs,
          .layout = layout_,
          .count = form.each ? form.each->count : 1};
    targets_.push_back({&to, rows, form.is_pair});
  }

 private:
  Targets& targets_;
  const WeightLayout layout_;
};

TransposedWeights::TransposedWeights(const DecoderSpec& spec, Device& device, bool in_turn,
                                     WeightLayout layout)
    : spec_(spec),
      in_turn_(in_turn),
      layout_(layout),
      layers_(static_cast<size_t>(spec.all_layers())),
      targets_(layers_.size()) {
  for (int i = 0; i < spec.all_layers(); ++i) describe_layer(i);
  if (in_turn)
    share(device);
  else
    for (const Targets& layer : targets_) allocate(device, layer);
  head_ = {.type = DType::bf16, .n = spec.hidden, .k = spec.vocab, .layout = layout};
  allocate(device, {{&head_, {}, false}});
}

void TransposedWeights::describe_layer(int layer) {
  const Shard whole_model{};
  Visitor visitor(targets_[static_cast<size_t>(layer)], layout_);
  for (const auto& part : parts_of({spec_, layer, whole_model})) {
    LayerWeights& weights = layers_[static_cast<size_t>(layer)];
    weights.push_back(part->make_weights());
    part->visit_tensors(*weights.back(), visitor);
  }
}

void TransposedWeights::allocate(Device& device, const Targets& targets) {
  for (const Target& to : targets) {
    memory_.emplace_back(device, static_cast<size_t>(to.matrix->elements()),
                         "the transposed weights");
    to.matrix->data = memory_.back().data();
  }
}

// One after the other.
void TransposedWeights::place(bf16_t* memory, const Targets& targets) {
  for (const Target& to : targets) {
    to.matrix->data = memory;
    memory += round_up(to.matrix->elements(), kPanelWidth);
  }
}

void TransposedWeights::share(Device& device) {
  int64_t most = 0;
  for (const Targets& layer : targets_) {
    int64_t size = 0;
    for (const Target& to : layer) size += round_up(to.matrix->elements(), kPanelWidth);
    most = std::max(most, size);
  }
  memory_.emplace_back(device, static_cast<size_t>(most), "the transposed weights");
  for (const Targets& layer : targets_) place(memory_.back().data(), layer);
}

namespace {

// Puts rows of a tensor as elements `inner` into a transposed matrix.
class Packing {
 public:
  Packing(const TransposedWeights::Source& from, const TrainingKernels& kernels,
          const Execution& on)
      : from_(from), kernels_(kernels), on_(on) {}

  void pack(TensorRole role, int layer, Columns inner, const Matrix& to, int64_t expert = 0) const {
    const int64_t of_expert = expert * round_up(inner.count * to.n, kPanelWidth);
    const int64_t at = from_.layout.offset(role, layer) + of_expert - from_.begin;
    on_.run(kernels_.pack_columns,
            PackColumnsParams{.x = from_.weights + at,
                              .x_stride = to.n,
                              .rows = inner.count,
                              .width = to.n,
                              .inner = inner,
                              .inner_size = to.k,
                              .out = static_cast<bf16_t*>(const_cast<void*>(to.data)),
                              .layout = to.layout});
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
  for (const Target& to : targets_[static_cast<size_t>(layer)])
    for (int64_t expert = 0; expert < to.matrix->count; ++expert) {
      int64_t before = 0;
      int number = 0;
      for (const TensorRow& row : to.rows) {
        packing.pack(row.role, layer, columns_of(row, to.is_pair, number++, before),
                     to.matrix->part(expert, 1), expert);
        before += inputs_of(row, to.is_pair);
      }
    }
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
      .pack(spec_.tied_head ? TensorRole::embedding : TensorRole::head, -1, {0, spec_.vocab},
            head_);
}

void TransposedWeights::update(const bf16_t* weights, const ParameterLayout& layout,
                               const TrainingKernels& kernels, const Execution& on) {
  const Source from{weights, layout};
  for (int layer = 0; layer < spec_.all_layers(); ++layer) update_layer(layer, from, kernels, on);
  update_head(from, kernels, on);
}

}  // namespace invar
