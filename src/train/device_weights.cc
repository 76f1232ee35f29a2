#include "train/device_weights.h"

#include <algorithm>

#include "model/families/family_source.h"

namespace invar {

class DevicePacking::Visitor final : public TensorVisitor {
 public:
  Visitor(const DevicePacking& packing, const bf16_t* from, const Execution& on)
      : packing_(packing), from_(from), on_(on) {}

  void of_layer(int layer) { layer_ = layer; }

  void vector(const float*& to, const std::vector<TensorRow>& rows, const Each* each) override {
    float* next = const_cast<float*>(to);
    for (int i = 0; i < (each ? each->count : 1); ++i)
      for (const TensorRow& row : rows) {
        const int64_t count = row.rows.size;
        widen(place(row.role, layer_) + i * round_up(count, kPanelWidth), count, next);
        next += count;
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
        pack({.x = from_ + place(row.role, layer_) + expert * size,
              .rows = row.rows.size,
              .first = form.is_pair ? 0 : first,
              .number = form.is_pair ? number++ : -1,
              .to = own});
        first += row.rows.size;
      }
    }
  }

  void table(TensorRole role, const Matrix& to) const {
    pack({.x = from_ + place(role, -1), .rows = to.n, .to = to});
  }
  void norm(TensorRole role, int layer, const float* to) const {
    widen(place(role, layer), packing_.spec_.hidden, const_cast<float*>(to));
  }

 private:
  int64_t place(TensorRole role, int layer) const { return packing_.layout_.offset(role, layer); }
  void pack(const PackOutputsParams& p) const { on_.run(packing_.device_.pack_outputs, p); }
  void widen(int64_t at, int64_t count, float* to) const {
    on_.run(packing_.device_.widen, WidenParams{.x = from_ + at, .count = count, .out = to});
    if (std::ranges::binary_search(packing_.offsets_, at))
      on_.run(packing_.device_.training.add_gradient,
              AddGradientParams{.x = packing_.ones_.data(), .count = count, .y = to});
  }

  const DevicePacking& packing_;
  const bf16_t* from_;
  const Execution& on_;
  int layer_ = -1;
};

bool can_pack_on_device(const TrainingDevice& on, const DecoderSpec& spec) {
  return on.pack_outputs && spec.norm == NormKind::rms && stores_decoders_numbers(spec);
}

DevicePacking::DevicePacking(const TrainingDevice& on, const DecoderSpec& spec,
                             const ParameterLayout& layout)
    : device_(on), spec_(spec), layout_(layout) {
  int64_t longest = 0;
  for (const ParameterLayout::Slot& slot : layout.slots()) {
    if (!is_stored_as_offset(spec, slot.tensor)) continue;
    offsets_.push_back(slot.offset);
    longest = std::max(longest, slot.count);
  }
  if (longest == 0) return;
  const std::vector<float> ones(static_cast<size_t>(longest), 1.0f);
  ones_ = {*on.device, ones.size(), "ones that are added to norms"};
  on.device->upload(ones_.data(), ones.data(), ones.size() * sizeof(float));
}

void DevicePacking::pack(const bf16_t* from, const DecoderWeights& to, const Execution& on) const {
  using enum TensorRole;
  Visitor visitor(*this, from, on);
  const Shard whole{};
  for (int layer = 0; layer < spec_.all_layers(); ++layer) {
    visitor.of_layer(layer);
    const LayerParts parts = parts_of({spec_, layer, whole});
    const LayerWeights& weights = to.layers()[static_cast<size_t>(layer)];
    for (size_t part = 0; part < parts.size(); ++part)
      parts[part]->visit_tensors(*weights[part], visitor);
  }
  visitor.table(spec_.tied_head ? embedding : head, to.head());
  if (!to.embedding_is_shared()) visitor.table(embedding, to.embedding());
  visitor.norm(final_norm, -1, to.final_norm());
  if (to.module_norm()) visitor.norm(mtp_head_norm, spec_.layers, to.module_norm());
}

}  // namespace invar
