#include "model/families/tensor_table.h"

#include <fmt/format.h>

#include "base/check.h"
#include "model/parts/part.h"

namespace invar {

namespace {

using enum TensorRole;

// Collects what parts say of one layer's tensors.
class Collector : public TensorVisitor {
 public:
  Collector(std::vector<TensorSpec>& tensors, int layer) : tensors_(tensors), layer_(layer) {}

  void vector(const float*&, const std::vector<TensorRow>& rows, const Each* each) override {
    for (const TensorRow& row : rows) add(row, each, false);
  }
  void matrix(Matrix&, const std::vector<TensorRow>& rows, MatrixForm form) override {
    for (const TensorRow& row : rows) add(row, form.each, form.takes_quantised);
  }
  void add(const TensorRow& row, const Each* each, bool takes_quantised) {
    std::vector<int64_t> shape{row.rows.size};
    if (row.columns.size > 0) shape.push_back(row.columns.size);
    const int count = each ? each->count : 1;
    for (int i = 0; i < count; ++i) {
      const int expert = each ? i : -1;
      tensors_.push_back(
          {row.role, layer_, tensor_name(row, layer_, expert), shape, expert, takes_quantised});
    }
  }

 private:
  std::vector<TensorSpec>& tensors_;
  const int layer_;
};

void add_layer(const DecoderSpec& spec, int layer, std::vector<TensorSpec>& tensors) {
  const Shard whole_model{};
  Collector collector(tensors, layer);
  for (const auto& part : parts_of({spec, layer, whole_model}))
    part->visit_tensors(*part->make_weights(), collector);
  if (layer == spec.layers) collector.add(module_norm(spec), nullptr, false);
}

}  // namespace

TensorRow module_norm(const DecoderSpec& spec) {
  return {mtp_head_norm, "shared_head.norm.weight", whole(spec.hidden)};
}

std::string tensor_name(const TensorRow& row, int layer, int expert) {
  return fmt::format("model.layers.{}.{}", layer, fmt::format(fmt::runtime(row.name), expert));
}

std::string tensor_name(TensorRole role) {
  switch (role) {
    case embedding:
      return "model.embed_tokens.weight";
    case layer_input_embedding:
      return "model.embed_tokens_per_layer.weight";
    case layer_input_projection:
      return "model.per_layer_model_projection.weight";
    case layer_input_norm:
      return "model.per_layer_projection_norm.weight";
    case final_norm:
      return "model.norm.weight";
    case final_norm_bias:
      return "model.norm.bias";
    case head:
      return "lm_head.weight";
    default:
      CHECK(false, "a tensor outside the layers");
  }
  return "";
}

std::vector<TensorSpec> tensors_of(const DecoderSpec& spec) {
  std::vector<TensorSpec> tensors;
  const auto add = [&](TensorRole role, std::vector<int64_t> shape) {
    tensors.push_back({role, -1, tensor_name(role), std::move(shape)});
  };
  if (spec.tokens() > 0) add(embedding, {spec.tokens(), spec.hidden});
  if (const int64_t each = spec.layer_input_width(); each > 0) {
    add(layer_input_embedding, {spec.tokens(), spec.layers * each});
    add(layer_input_projection, {spec.layers * each, spec.hidden});
    add(layer_input_norm, {each});
  }
  for (int layer = 0; layer < spec.layers; ++layer) add_layer(spec, layer, tensors);
  if (spec.final_norm) add(final_norm, {spec.hidden});
  if (spec.norm == NormKind::layer) add(final_norm_bias, {spec.hidden});
  if (!spec.tied_head) add(head, {spec.vocab, spec.hidden});
  if (spec.mtp_layers > 0) add_layer(spec, spec.layers, tensors);
  return tensors;
}

bool are_alike(const DecoderSpec& spec, int layer, int other) {
  std::vector<TensorSpec> one, two;
  add_layer(spec, layer, one);
  add_layer(spec, other, two);
  for (std::vector<TensorSpec>* tensors : {&one, &two})
    for (TensorSpec& tensor : *tensors) tensor.layer = 0, tensor.name.clear();
  return one == two;
}

}  // namespace invar
