#include "model/families/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "base/check.h"

namespace invar {

namespace {

using enum TensorRole;
using enum TensorPlace;
using M = LayerMatrices;
using W = LayerWeights;

constexpr Extent kNone = Extent::none, kHidden = Extent::hidden, kQuery = Extent::query,
                 kKv = Extent::kv, kHead = Extent::head, kFfn = Extent::ffn, kVocab = Extent::vocab;
constexpr Axis kWhole = Axis::none, kRows = Axis::rows, kColumns = Axis::columns;

constexpr auto qkv_bias = [](const DecoderSpec& spec) { return spec.qkv_bias; };
constexpr auto qk_norm = [](const DecoderSpec& spec) { return spec.qk_norm; };
constexpr auto with_o_bias = [](const DecoderSpec& spec) { return spec.o_bias; };
constexpr auto mlp_bias = [](const DecoderSpec& spec) { return spec.mlp_bias; };
constexpr auto own_head = [](const DecoderSpec& spec) { return !spec.tied_head; };
constexpr auto has_mtp = [](const DecoderSpec& spec) { return spec.mtp_layers > 0; };

// Those of the module are named as in DeepSeek's checkpoints.
// clang-format off
constexpr TensorRow kTensors[] = {
    {embedding, "model.embed_tokens.weight", input, kVocab, kHidden},

    {mtp_embedding_norm, "enorm.weight", module, kHidden, kNone, kWhole, has_mtp},
    {mtp_hidden_norm, "hnorm.weight", module, kHidden, kNone, kWhole, has_mtp},
    {mtp_projection, "eh_proj.weight", module, kHidden, Extent::twice_hidden, kWhole, has_mtp},

    {input_norm, "input_layernorm.weight", layer, kHidden, kNone, kWhole, nullptr, nullptr, &W::attention_norm},
    {q, "self_attn.q_proj.weight", layer, kQuery, kHidden, kRows, nullptr, &M::qkv},
    {k, "self_attn.k_proj.weight", layer, kKv, kHidden, kRows, nullptr, &M::qkv},
    {v, "self_attn.v_proj.weight", layer, kKv, kHidden, kRows, nullptr, &M::qkv},
    {q_bias, "self_attn.q_proj.bias", layer, kQuery, kNone, kRows, qkv_bias, nullptr, &W::qkv_bias},
    {k_bias, "self_attn.k_proj.bias", layer, kKv, kNone, kRows, qkv_bias, nullptr, &W::qkv_bias},
    {v_bias, "self_attn.v_proj.bias", layer, kKv, kNone, kRows, qkv_bias, nullptr, &W::qkv_bias},
    {q_norm, "self_attn.q_norm.weight", layer, kHead, kNone, kWhole, qk_norm, nullptr, &W::q_norm},
    {k_norm, "self_attn.k_norm.weight", layer, kHead, kNone, kWhole, qk_norm, nullptr, &W::k_norm},
    {o, "self_attn.o_proj.weight", layer, kHidden, kQuery, kColumns, nullptr, &M::o},
    {o_bias, "self_attn.o_proj.bias", layer, kHidden, kNone, kWhole, with_o_bias, nullptr, &W::o_bias},
    {post_norm, "post_attention_layernorm.weight", layer, kHidden, kNone, kWhole, nullptr, nullptr, &W::ffn_norm},
    {gate, "mlp.gate_proj.weight", layer, kFfn, kHidden, kRows, nullptr, &M::gate_up},
    {up, "mlp.up_proj.weight", layer, kFfn, kHidden, kRows, nullptr, &M::gate_up},
    {down, "mlp.down_proj.weight", layer, kHidden, kFfn, kColumns, nullptr, &M::down},
    {gate_bias, "mlp.gate_proj.bias", layer, kFfn, kNone, kRows, mlp_bias, nullptr, &W::gate_bias},
    {up_bias, "mlp.up_proj.bias", layer, kFfn, kNone, kRows, mlp_bias, nullptr, &W::up_bias},
    {down_bias, "mlp.down_proj.bias", layer, kHidden, kNone, kWhole, mlp_bias, nullptr, &W::down_bias},

    {mtp_head_norm, "shared_head.norm.weight", module, kHidden, kNone, kWhole, has_mtp},

    {final_norm, "model.norm.weight", output, kHidden, kNone},
    {head, "lm_head.weight", output, kVocab, kHidden, kRows, own_head},
};
// clang-format on

}  // namespace

std::span<const TensorRow> tensor_table() {
  return kTensors;
}

const TensorRow& row_of(TensorRole role) {
  const auto* row = std::ranges::find(kTensors, role, &TensorRow::role);
  CHECK(row != std::end(kTensors), "every tensor has a row");
  return *row;
}

int64_t extent_of(Extent extent, const DecoderSpec& spec) {
  switch (extent) {
    case Extent::none:
      return 1;
    case Extent::hidden:
      return spec.hidden;
    case Extent::twice_hidden:
      return 2 * int64_t{spec.hidden};
    case Extent::query:
      return spec.query_width();
    case Extent::kv:
      return spec.kv_width();
    case Extent::head:
      return spec.head_dim;
    case Extent::ffn:
      return spec.ffn;
    case Extent::vocab:
      return spec.vocab;
  }
  return 0;
}

bool is_present(const TensorRow& row, const DecoderSpec& spec) {
  return !row.is_present || row.is_present(spec);
}

std::string tensor_name(TensorRole role, int layer) {
  const TensorRow& row = row_of(role);
  const bool is_outside = row.place == TensorPlace::input || row.place == TensorPlace::output;
  CHECK(is_outside == (layer < 0), "a tensor is either in a layer or outside");
  return is_outside ? row.name : fmt::format("model.layers.{}.{}", layer, row.name);
}

std::vector<TensorSpec> tensors_of(const DecoderSpec& spec) {
  std::vector<TensorSpec> tensors;
  const auto add = [&](int layer, std::initializer_list<TensorPlace> places) {
    for (const TensorRow& row : tensor_table()) {
      if (std::ranges::find(places, row.place) == places.end() || !is_present(row, spec)) continue;
      std::vector<int64_t> shape = {extent_of(row.rows, spec)};
      if (row.columns != Extent::none) shape.push_back(extent_of(row.columns, spec));
      tensors.push_back({row.role, layer, tensor_name(row.role, layer), std::move(shape)});
    }
  };
  add(-1, {TensorPlace::input});
  for (int layer = 0; layer < spec.layers; ++layer) add(layer, {TensorPlace::layer});
  add(-1, {TensorPlace::output});
  if (spec.mtp_layers > 0) add(spec.layers, {TensorPlace::layer, TensorPlace::module});
  return tensors;
}

}  // namespace invar
