#include "model/families/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "model/parts/layer_part.h"

namespace invar {

namespace {

using enum TensorRole;
using enum TensorPlace;

constexpr Extent kNone = Extent::none, kHidden = Extent::hidden, kVocab = Extent::vocab;
constexpr Axis kWhole = Axis::none, kRows = Axis::rows;

constexpr auto with_final_norm = [](const DecoderSpec& spec, const LayerSpec&) {
  return spec.final_norm;
};
constexpr auto is_layer_norm = [](const DecoderSpec& spec, const LayerSpec&) {
  return spec.norm == NormKind::layer;
};
constexpr auto own_embedding = [](const DecoderSpec& spec, const LayerSpec&) {
  return spec.tokens() > 0;
};
constexpr auto own_head = [](const DecoderSpec& spec, const LayerSpec&) { return !spec.tied_head; };

// clang-format off
constexpr TensorRow kTensors[] = {
    {embedding, "model.embed_tokens.weight", input, Extent::tokens, kHidden, kWhole, own_embedding},
    {final_norm, "model.norm.weight", output, kHidden, kNone, kWhole, with_final_norm},
    {final_norm_bias, "model.norm.bias", output, kHidden, kNone, kWhole, is_layer_norm},
    {head, "lm_head.weight", output, kVocab, kHidden, kRows, own_head},
};
// The last of the module of multi-token prediction.
constexpr TensorRow kModuleNorm = {mtp_head_norm, "shared_head.norm.weight", layer, kHidden, kNone, kWhole, nullptr, nullptr, &LayerWeights::head_norm};
// clang-format on

}  // namespace

bool takes_quantised(TensorRole role) {
  using enum TensorRole;
  return role == q || role == k || role == v || role == o || role == gate || role == up ||
         role == down;
}

std::vector<const TensorRow*> layer_tensors(const DecoderSpec& spec, int layer) {
  std::vector<const TensorRow*> rows;
  const LayerSpec layer_spec = spec.layer(layer);
  for (const LayerPart* part : parts_of(layer_spec))
    for (const TensorRow& row : part->tensors)
      if (!row.is_present || row.is_present(spec, layer_spec)) rows.push_back(&row);
  if (layer == spec.layers) rows.push_back(&kModuleNorm);
  return rows;
}

const TensorRow& row_of(TensorRole role) {
  const auto* row = std::ranges::find(kTensors, role, &TensorRow::role);
  CHECK(row != std::end(kTensors), "a tensor outside the layers");
  return *row;
}

int64_t extent_of(Extent extent, const DecoderSpec& spec, int layer) {
  switch (extent) {
    case Extent::none:
      return 1;
    case Extent::hidden:
      return spec.hidden;
    case Extent::twice_hidden:
      return 2 * int64_t{spec.hidden};
    case Extent::attention_input:
      return (reads_joined(spec.layer(layer)) ? 2 : 1) * int64_t{spec.hidden};
    case Extent::features:
      return features_of(spec.layer(layer), spec.hidden);
    case Extent::query:
      return spec.query_width();
    case Extent::kv:
      return spec.kv_width();
    case Extent::head:
      return spec.head_dim;
    case Extent::heads:
      return spec.heads;
    case Extent::ffn:
      return spec.layer(layer).ffn.width;
    case Extent::query_rank:
      return spec.layer(layer).attention.latent->query_rank;
    case Extent::still:
      return spec.layer(layer).attention.latent->still;
    case Extent::still_query:
      return int64_t{spec.heads} * spec.layer(layer).attention.latent->still;
    case Extent::turning_query:
      return int64_t{spec.heads} * spec.layer(layer).attention.latent->turning;
    case Extent::latent:
      return spec.head_dim;
    case Extent::latent_rank:
      return spec.layer(layer).attention.latent->rank;
    case Extent::latent_value:
      return spec.layer(layer).attention.latent->value;
    case Extent::attended:
      return int64_t{spec.heads} * spec.layer(layer).attention.latent->value;
    case Extent::one:
      return 1;
    case Extent::experts:
      return spec.layer(layer).experts->routing.experts;
    case Extent::expert_ffn:
      return spec.layer(layer).experts->width;
    case Extent::shared_ffn:
      return spec.layer(layer).experts->shared_width;
    case Extent::tokens:
      return spec.tokens();
    case Extent::vocab:
      return spec.vocab;
  }
  return 0;
}

std::string tensor_name(const TensorRow& row, int layer, int expert) {
  const bool is_outside = row.place == TensorPlace::input || row.place == TensorPlace::output;
  CHECK(is_outside == (layer < 0), "a tensor is either in a layer or outside");
  CHECK(is_of_each(row.cut) == (expert >= 0), "a tensor is of an expert or of none");
  if (is_outside) return row.name;
  return fmt::format("model.layers.{}.{}", layer, fmt::format(fmt::runtime(row.name), expert));
}

bool holds_pairs(Matrix LayerMatrices::*matrix) {
  return matrix == &LayerMatrices::gate_up || matrix == &LayerMatrices::expert_gate_up ||
         matrix == &LayerMatrices::shared_gate_up;
}

std::string tensor_name(TensorRole role, int layer) {
  return tensor_name(row_of(role), layer);
}

std::vector<TensorSpec> tensors_of(const DecoderSpec& spec) {
  std::vector<TensorSpec> tensors;
  const auto add = [&](const TensorRow& row, int layer) {
    std::vector<int64_t> shape{extent_of(row.rows, spec, layer)};
    if (row.columns != Extent::none) shape.push_back(extent_of(row.columns, spec, layer));
    if (!is_of_each(row.cut))
      return tensors.push_back({row.role, layer, tensor_name(row, layer), std::move(shape)});
    const int count =
        row.cut == Axis::heads ? spec.heads : spec.layer(layer).experts->routing.experts;
    for (int e = 0; e < count; ++e)
      tensors.push_back({row.role, layer, tensor_name(row, layer, e), shape, e});
  };
  const auto add_layer = [&](int layer) {
    for (const TensorRow* row : layer_tensors(spec, layer)) add(*row, layer);
  };
  const auto add_place = [&](TensorPlace place, int layer) {
    for (const TensorRow& row : kTensors)
      if (row.place == place && (!row.is_present || row.is_present(spec, {}))) add(row, layer);
  };
  add_place(TensorPlace::input, -1);
  for (int layer = 0; layer < spec.layers; ++layer) add_layer(layer);
  add_place(TensorPlace::output, -1);
  if (spec.mtp_layers > 0) add_layer(spec.layers);
  return tensors;
}

bool are_alike(const DecoderSpec& spec, int layer, int other) {
  const auto rows = layer_tensors(spec, layer);
  return rows == layer_tensors(spec, other) &&
         spec.layer(layer).experts == spec.layer(other).experts &&
         std::ranges::all_of(rows, [&](const TensorRow* row) {
           return extent_of(row->rows, spec, layer) == extent_of(row->rows, spec, other) &&
                  (row->columns == Extent::none ||
                   extent_of(row->columns, spec, layer) == extent_of(row->columns, spec, other));
         });
}

}  // namespace invar
