#include "train/device_weights.h"

#include "base/check.h"
#include "model/families/family_source.h"

namespace invar {

namespace {

class Packing final : public TensorVisitor {
 public:
  Packing(const TrainingDevice& device, const ParameterLayout& layout, const bf16_t* from,
          const Execution& on)
      : device_(device), layout_(layout), from_(from), on_(on) {}

  void of_layer(int layer) { layer_ = layer; }

  void vector(const float*& to, const std::vector<TensorRow>& rows, const Each* each) override {
    CHECK(!each, "vectors of several experts are not trained");
    float* next = const_cast<float*>(to);
    for (const TensorRow& row : rows) {
      widen(row.role, layer_, row.rows.size, next);
      next += row.rows.size;
    }
  }

  void matrix(Matrix& to, const std::vector<TensorRow>& rows, MatrixForm form) override {
    const int64_t each = form.is_pair ? 2 : 1;
    for (int64_t expert = 0; expert < to.count / each; ++expert) {
      const Matrix own = to.part(expert * each, each);
      int64_t first = 0;
      int number = 0;
      for (const TensorRow& row : rows) {
        const int64_t size = round_up(row.rows.size * to.k, kPanelWidth);
        pack({.x = element(row.role, layer_) + expert * size,
              .rows = row.rows.size,
              .first = form.is_pair ? 0 : first,
              .number = form.is_pair ? number++ : -1,
              .to = own});
        first += row.rows.size;
      }
    }
  }

  void pack(const PackOutputsParams& p) const { on_.run(device_.pack_outputs, p); }
  void widen(TensorRole role, int layer, int64_t count, float* to) const {
    on_.run(device_.widen, WidenParams{.x = element(role, layer), .count = count, .out = to});
  }
  const bf16_t* element(TensorRole role, int layer) const {
    return from_ + layout_.offset(role, layer);
  }

 private:
  const TrainingDevice& device_;
  const ParameterLayout& layout_;
  const bf16_t* from_;
  const Execution& on_;
  int layer_ = -1;
};

}  // namespace

bool can_pack_on_device(const TrainingDevice& on, const DecoderSpec& spec) {
  return on.pack_outputs && spec.norm == NormKind::rms && !stores_otherwise(spec);
}

void pack_on_device(const TrainingDevice& device, const DecoderSpec& spec,
                    const ParameterLayout& layout, const bf16_t* from, const DecoderWeights& to,
                    const Execution& on) {
  using enum TensorRole;
  Packing packing(device, layout, from, on);
  const Shard whole{};
  for (int layer = 0; layer < spec.all_layers(); ++layer) {
    packing.of_layer(layer);
    const LayerParts parts = parts_of({spec, layer, whole});
    const LayerWeights& weights = to.layers()[static_cast<size_t>(layer)];
    for (size_t part = 0; part < parts.size(); ++part)
      parts[part]->visit_tensors(*weights[part], packing);
  }
  const auto table = [&](TensorRole role, const Matrix& matrix) {
    packing.pack({.x = packing.element(role, -1), .rows = matrix.n, .to = matrix});
  };
  table(spec.tied_head ? embedding : head, to.head());
  if (!to.embedding_is_shared()) table(embedding, to.embedding());
  packing.widen(final_norm, -1, spec.hidden, const_cast<float*>(to.final_norm()));
  if (to.module_norm())
    packing.widen(mtp_head_norm, spec.layers, spec.hidden, const_cast<float*>(to.module_norm()));
}

}  // namespace invar
