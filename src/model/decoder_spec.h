// A decoder as plain data: its layers, each a list of parts (part_specs.h), and the sizes and
// choices that all layers share. The forward reads nothing else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/part_specs.h"

namespace invar {

// The parts of one layer, in the order in which they run (model/parts).
struct LayerSpec {
  std::vector<PartSpec> parts;

  // The part of a type, or null.
  template <typename Spec>
  const Spec* find() const {
    for (const PartSpec& part : parts)
      if (const Spec* found = std::get_if<Spec>(&part)) return found;
    return nullptr;
  }
  template <typename Spec>
  Spec* find() {
    return const_cast<Spec*>(std::as_const(*this).find<Spec>());
  }
  // Puts a part at its place, for the part of the same role that the layer had.
  void put(PartSpec part) {
    const PartRole role = role_of(part);
    std::erase_if(parts, [&](const PartSpec& other) { return role_of(other) == role; });
    size_t at = 0;
    while (at < parts.size() && role_of(parts[at]) < role) ++at;
    parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(at), std::move(part));
  }

  const AttentionSpec* attention() const { return find<AttentionSpec>(); }
  AttentionSpec* attention() { return find<AttentionSpec>(); }
  const DenseFfnSpec* ffn() const { return find<DenseFfnSpec>(); }
  DenseFfnSpec* ffn() { return find<DenseFfnSpec>(); }
  const ExpertsSpec* experts() const { return find<ExpertsSpec>(); }
  ExpertsSpec* experts() { return find<ExpertsSpec>(); }

  const IndexerSpec* indexer() const {
    const bool has = attention() && attention()->latent && attention()->latent->indexer;
    return has ? &*attention()->latent->indexer : nullptr;
  }
  int window() const { return attention() ? attention()->window : 0; }
  int ffn_width() const { return ffn() ? ffn()->width : 0; }
  bool has_networks_beside() const { return experts() && experts()->is_beside; }
  int chosen_experts() const { return experts() ? experts()->routing.chosen : 0; }

  bool operator==(const LayerSpec&) const = default;
};

// Numbers of another decoder that a row comes with; 0: none, the layer reads tokens or the stream.
inline int64_t features_of(const LayerSpec& layer, int hidden) {
  if (const JoinSpec* join = layer.find<JoinSpec>())
    return int64_t{join->features} * join->feature_width;
  const ResidualBlockSpec* block = layer.find<ResidualBlockSpec>();
  return block && block->reads_feature ? hidden : 0;
}
// Whether attention reads the token's embedding and the hidden state.
inline bool reads_joined(const LayerSpec& layer) {
  const JoinSpec* join = layer.find<JoinSpec>();
  return join && !join->is_projected;
}
// A family's norms are x / rms(x) * w, or (x - mean) / deviation * w + b (Falcon).
enum class NormKind { rms, layer };

// Falcon H1: matrices are multiplied by these numbers as they are read.
struct MultiplierSpec {
  double attention_in = 1, key = 1, attention_out = 1;
  double state_in = 1, state_out = 1;
  double state_gate = 1, state_value = 1, state_key = 1, state_query = 1, state_step = 1;
  double ffn_gate = 1, ffn_down = 1;

  bool operator==(const MultiplierSpec&) const = default;
};

struct DecoderSpec {
  std::string family;  // "llama", "mistral", "qwen2", ...
  int hidden = 0;      // D: width of the residual stream
  int layers = 0;
  // 0 or 1: modules that predict one token further (multi-token prediction, DeepSeek-V3, section
  // 2.2). The module's decoder block is layer number `layers`; plain decoding ignores it.
  int mtp_layers = 0;
  int heads = 0;     // H: query heads
  int kv_heads = 0;  // G: key/value heads; divides heads
  int head_dim = 0;  // E: 8 to 256, of latents to 576, even
  int vocab = 0;     // V: rows of the embedding
  // Rows of the embedding where they are not V; 0: the embedding is another decoder's.
  int embedding_rows = -1;
  int max_positions = 0;  // positions 0 .. max_positions - 1 exist
  float norm_eps = 0;
  bool is_text_tower = false;    // the model reads images, too
  bool qkv_bias = false;         // Qwen2; Llama with attention_bias
  bool o_bias = false;           // Llama with attention_bias
  bool mlp_bias = false;         // Llama with mlp_bias
  bool qk_norm = false;          // Qwen3: RMSNorm of every query and key head before rotation
  bool joint_qk_norm = false;    // OLMo 2: all heads of a row are one vector of the q/k norm
  bool late_qk_norm = false;     // Hunyuan: the q/k norm stands behind the rotation
  bool tied_head = false;        // the head is the embedding
  bool has_own_ffn_norm = true;  // Falcon 7B: attention and the feed-forward network share one
  NormKind norm = NormKind::rms;
  float embedding_scale = 1;  // Gemma, Granite: the embedding's rows are multiplied by it
  float residual_scale = 1;   // Granite: a part's output is multiplied by it before it is added
  float logits_divisor = 1;   // Granite: logits are divided by it
  float logits_cap = 0;       // Gemma 2: logits are cap * tanh(logit / cap); 0: as they are
  bool final_norm = true;     // before the head
  std::optional<MultiplierSpec> multipliers = {};
  std::vector<LayerSpec> layer_specs;  // [layers]

  int kv_heads_of(const AttentionSpec& attention) const {
    return attention.kv_heads ? attention.kv_heads : kv_heads;
  }
  int head_dim_of(const AttentionSpec& attention) const {
    return attention.head_dim ? attention.head_dim : head_dim;
  }
  // The layer whose keys and values a layer's attention reads: itself, or those of the last layer
  // before it that has some and sees as far; -1: there is none.
  int kv_layer(int index) const {
    if (index >= layers) return index;
    const AttentionSpec* own = layer_specs[static_cast<size_t>(index)].attention();
    if (!own || !own->shares_keys) return index;
    for (int i = index - 1; i >= 0; --i) {
      const AttentionSpec* other = layer_specs[static_cast<size_t>(i)].attention();
      if (other && !other->shares_keys && (other->window > 0) == (own->window > 0)) return i;
    }
    return -1;
  }
  // Whether a later layer reads its keys and values, or attends to the positions that it chose.
  bool is_shared(int index) const {
    const IndexerSpec* own = layer_specs[static_cast<size_t>(index)].indexer();
    for (int other = index + 1; other < layers; ++other) {
      if (kv_layer(other) == index) return true;
      const IndexerSpec* indexer = layer_specs[static_cast<size_t>(other)].indexer();
      if (indexer && !indexer->is_shared) own = nullptr;
      if (own && !own->is_shared && indexer) return true;
    }
    return false;
  }
  // The width of the vector that a token brings to each layer; 0: none.
  int layer_input_width() const {
    const LayerEndSpec* end = first<LayerEndSpec>();
    return end ? end->input_width : 0;
  }
  int query_width() const { return heads * head_dim; }
  int kv_width() const { return kv_heads * head_dim; }
  int tokens() const { return embedding_rows < 0 ? vocab : embedding_rows; }
  int all_layers() const { return layers + mtp_layers; }
  // The module's layer is the last one with attention, without a window, behind a join.
  LayerSpec layer(int index) const {
    if (index < layers) return layer_specs[static_cast<size_t>(index)];
    const auto last = std::find_if(layer_specs.rbegin(), layer_specs.rend(),
                                   [](const LayerSpec& each) { return each.attention(); });
    LayerSpec module = last == layer_specs.rend() ? layer_specs.back() : *last;
    if (AttentionSpec* attention = module.attention()) {
      attention->window = 0;
      if (attention->latent && attention->latent->indexer)
        attention->latent->indexer->is_shared = false;
    }
    module.put(JoinSpec{});
    return module;
  }
  void set_layers(const LayerSpec& each) {
    layer_specs.assign(static_cast<size_t>(layers > 0 ? layers : 0), each);
  }
  // The first part of a type, or null.
  template <typename Spec>
  const Spec* first() const {
    for (const LayerSpec& layer : layer_specs)
      if (const Spec* found = layer.find<Spec>()) return found;
    return nullptr;
  }
  bool operator==(const DecoderSpec&) const = default;
};

// The indexer of the first layer that has one, or null.
inline const IndexerSpec* find_indexer(const DecoderSpec& spec) {
  for (const LayerSpec& layer : spec.layer_specs)
    if (layer.indexer()) return layer.indexer();
  return nullptr;
}

// Whether rows see what stands behind them, so that a text is computed whole.
inline bool sees_ahead(const DecoderSpec& spec) {
  const AttentionSpec* first = spec.first<AttentionSpec>();
  return first && first->sees_ahead;
}

// The number of experts that a token goes through in all layers.
inline int routed_columns(const DecoderSpec& spec) {
  int columns = 0;
  for (const LayerSpec& layer : spec.layer_specs) columns += layer.chosen_experts();
  return columns;
}

}  // namespace invar
