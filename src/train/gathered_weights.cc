#include "train/gathered_weights.h"

#include "base/check.h"
#include "model/families/trained_source.h"
#include "train/layout_source.h"

namespace invar {

// The tensors of the unit that was gathered.
class GatheredWeights::UnitSource final : public LayoutSource {
 public:
  explicit UnitSource(const GatheredWeights& of) : LayoutSource(of.layout_), of_(of) {}

 private:
  void read_elements(int64_t offset, int64_t count, DType as, void* out) const override {
    const ParameterLayout::Unit& unit = of_.layout_.units()[static_cast<size_t>(of_.gathered_)];
    CHECK(unit.begin <= offset && offset + count <= unit.end, "a tensor that was not gathered");
    convert_elements(of_.unit_.data() + offset - unit.begin, DType::bf16, count, as, out);
  }

  const GatheredWeights& of_;
};

GatheredWeights::GatheredWeights(Group& group, const ParameterLayout& layout,
                                 const OwnedTensors& owned, const bf16_t* rounded,
                                 DecoderWeights& weights, TransposedWeights& transposed,
                                 const TrainingKernels& kernels, Decoder& decoder)
    : group_(group),
      layout_(layout),
      owned_(owned),
      rounded_(rounded),
      weights_(weights),
      transposed_(transposed),
      kernels_(kernels),
      decoder_(decoder) {
  const DecoderSpec& spec = decoder.spec;
  layer_units_.assign(static_cast<size_t>(spec.all_layers()), kNone);
  int64_t most = 0;
  for (int i = 0; i < std::ssize(layout.units()); ++i) {
    const ParameterLayout::Unit& unit = layout.units()[static_cast<size_t>(i)];
    most = std::max(most, unit.count());
    if (unit.layer >= 0)
      layer_units_[static_cast<size_t>(unit.layer)] = i;
    else
      (i == 0 ? input_ : output_) = i;
  }
  unit_ = DeviceArray<bf16_t>(decoder.device(), static_cast<size_t>(most), "a layer's weights");
  stored_ = std::make_unique<UnitSource>(*this);
  other_ = decoder_form(spec, *stored_);
  decoder.supply = this;
}

GatheredWeights::~GatheredWeights() = default;

void GatheredWeights::forget() {
  gathered_ = layer_ = end_ = transposed_layer_ = kNone;
  has_norm_ = has_transposed_head_ = false;
}

void GatheredWeights::gather(int unit) {
  if (gathered_ == unit) return;
  gathered_ = unit;
  timed(times_, "gather weights", [&] {
    gather_unit(group_, owned_, layout_.units()[static_cast<size_t>(unit)], rounded_, unit_.data(),
                decoder_.execution);
  });
}

TransposedWeights::Source GatheredWeights::gathered() const {
  return {unit_.data(), layout_, layout_.units()[static_cast<size_t>(gathered_)].begin};
}

void GatheredWeights::need_embedding() {
  if (end_ == input_) return;
  gather(input_);
  end_ = input_;
  timed(times_, "pack weights", [&] {
    weights_.load_embedding(decoder_.spec, other_ ? *other_ : *stored_, decoder_.device(),
                            *decoder_.execution.pool);
  });
  decoder_.embedding = weights_.embedding();
}

void GatheredWeights::need_head() {
  const DecoderSpec& spec = decoder_.spec;
  const TensorSource& source = other_ ? *other_ : *stored_;
  Device& device = decoder_.device();
  ThreadPool& pool = *decoder_.execution.pool;
  if (is_tied()) need_embedding();
  if (!has_norm_) {
    gather(output_);
    weights_.load_final_norm(spec, source, device, pool);
    has_norm_ = true;
  }
  if (is_tied() || end_ == output_) return;
  gather(output_);
  end_ = output_;
  timed(times_, "pack weights", [&] { weights_.load_head(spec, source, device, pool); });
}

void GatheredWeights::load_layer(int layer) {
  if (layer_ == layer) return;
  gather(layer_units_[static_cast<size_t>(layer)]);
  layer_ = layer;
  timed(times_, "pack weights", [&] {
    weights_.load_layer(decoder_.spec, layer, other_ ? *other_ : *stored_, decoder_.device(),
                        *decoder_.execution.pool);
  });
}

// The module that predicts one token further reads the embedding too.
void GatheredWeights::need_layer(int layer) {
  load_layer(layer);
  if (layer >= decoder_.spec.layers) need_embedding();
}

void GatheredWeights::need_layer_backward(int layer) {
  load_layer(layer);
  if (transposed_layer_ == layer) return;
  gather(layer_units_[static_cast<size_t>(layer)]);
  transposed_layer_ = layer;
  timed(times_, "pack transposed",
        [&] { transposed_.update_layer(layer, gathered(), kernels_, decoder_.execution); });
}

void GatheredWeights::need_head_backward() {
  if (has_transposed_head_) return;
  gather(is_tied() ? input_ : output_);
  has_transposed_head_ = true;
  timed(times_, "pack transposed",
        [&] { transposed_.update_head(gathered(), kernels_, decoder_.execution); });
}

}  // namespace invar
