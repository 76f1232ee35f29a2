// What a decoder is, as plain data: one field for each choice that a family makes. The forward
// reads nothing else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "numerics/curves.h"
#include "numerics/routing.h"

namespace invar {

// Rotary frequencies. A scaling that depends on the length seen (dynamic NTK) is refused
// (numerics 5).
struct RopeSpec {
  enum class Scaling { none, linear, llama3, yarn, longrope };
  double theta = 10000.0;
  Scaling scaling = Scaling::none;
  double factor = 1.0;            // linear, llama3, yarn
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  double original_positions = 0;  // llama3, yarn, longrope: positions of the first training stage
  int rotated = 0;                // so many elements of a head turn, the first ones; 0: all
  // Gemma 4: its frequencies are the first ones of a whole head's, whose element i turns with
  // i + E/2; else they are those of a head of `rotated` elements.
  bool spans_head = false;
  double beta_fast = 32, beta_slow = 1;  // yarn
  bool truncate = true;                  // yarn: the ends of its ramp are whole numbers
  double attention_factor = 1;           // yarn, longrope: cosines and sines are multiplied by it
  // longrope: what frequencies are divided by, of a server of short contexts and of long ones. That
  // is a property of the server (set_context), never of a request.
  std::vector<double> short_factors = {}, long_factors = {};
  bool is_long = false;

  bool operator==(const RopeSpec&) const = default;
};

// Where the RMSNorms of a part stand: of what it reads (x = norm(h)), of what it adds to the
// residual stream (h + norm(y)), or both.
enum class NormPlace { none, before, after, both };

constexpr bool is_before(NormPlace norms) {
  return norms == NormPlace::before || norms == NormPlace::both;
}
constexpr bool is_after(NormPlace norms) {
  return norms == NormPlace::after || norms == NormPlace::both;
}

// The role of a part in its layer, in the order in which they run. A layer has at most one of each.
enum class PartRole {
  join,            // makes the stream that the others read
  mixer,           // rows read earlier rows of their sequence
  beside,          // another mixer, which reads what the first one reads
  network,         // each row for itself
  network_beside,  // another one, which reads what the first one reads
  end,             // behind all others
};

// How a layer begins that goes on from hidden states: for every row there are the embedding e of a
// token and a hidden state h. As it stands: the module of multi-token prediction.
struct JoinSpec {
  static constexpr PartRole kRole = PartRole::join;
  // Where [e, h] goes: through a projection it becomes the residual stream; or attention reads it,
  // and the stream is h (EAGLE-3).
  bool is_projected = true;
  bool projection_bias = false;
  bool embedding_norm = true, hidden_norm = true;  // of e and h, before they are joined
  bool stream_is_normed = false;                   // not projected: the stream is the normed h
  // Hidden states of another decoder that h is made of at first: several by a product, one by a
  // norm.
  int features = 0, feature_width = 0;
  bool fuse_bias = false;

  bool operator==(const JoinSpec&) const = default;
};

// Attention whose keys and values are one latent vector of each position for all heads (DeepSeek).
// The decoder then has one key/value head, of the latent and what turns beside it.
struct LatentSpec {
  int rank = 0;          // of the latent: a multiple of 32
  int turning = 0;       // elements beside it that turn, and of each query
  int still = 0;         // elements of a query that do not: a multiple of 32
  int value = 0;         // elements of a head's output
  int query_rank = 0;    // of the vector that queries are made of; 0: they are made of the input
  double sharpness = 0;  // mscale_all_dim of a rotation with yarn
  float norm_eps = 0;    // of the norms of latents and of what queries are made of; 0: the model's

  bool operator==(const LatentSpec&) const = default;
};
inline constexpr int kMaxHeadDim = 576;       // of a latent and what turns beside it
inline constexpr int kMaxLayerHeadDim = 512;  // of a layer with a head size of its own

// How queries of later positions grow: by 1 + scale * log(1 + floor((position + 1) / step)).
struct GrowthSpec {
  double scale = 0, step = 1;

  bool operator==(const GrowthSpec&) const = default;
};

struct AttentionSpec {
  static constexpr PartRole kRole = PartRole::mixer;
  int window = 0;  // a query at p sees keys j with p - window < j <= p; 0 = all of them
  int chunk = 0;   // Llama 4: a query sees keys of its own run of so many positions; 0 = all
  bool sees_ahead = false;  // of texts: keys behind the query's position too, up to p + window - 1
  std::optional<RopeSpec> rope = RopeSpec{};  // none: queries and keys are not rotated
  NormPlace norms = NormPlace::before;
  double score_scale = 0;        // Gemma, Granite: what scores are multiplied by; 0: 1 / sqrt(E)
  float score_cap = 0;           // Gemma 2: scores are cap * tanh(score / cap); 0: as they are
  bool has_output_gate = false;  // Qwen3-Next: what it gives is multiplied by a logistic function
  bool has_sinks = false;       // gpt_oss: a number of each head joins its softmax, without a value
  bool has_unit_heads = false;  // Llama 4: heads of q and k have a norm without weights, turned
  std::optional<GrowthSpec> growth = {};  // Llama 4: of queries, where nothing turns
  int kv_heads = 0;                       // MiMo: of this layer; 0: the model's
  int head_dim = 0;                       // Gemma 4: of this layer; 0: the model's
  bool has_value_norm = false;            // Gemma 4: heads of values have a norm without weights
  bool keys_are_values = false;           // Gemma 4: a value is its key before norm and rotation
  bool shares_keys = false;  // Gemma 4: it reads keys and values of an earlier layer (kv_layer)
  int value_dim = 0;         // MiMo: elements of a value, fewer than of a key; 0: as many
  float value_scale = 1;     // MiMo: values are multiplied by it
  std::optional<LatentSpec> latent = {};

  bool operator==(const AttentionSpec&) const = default;
};

// Heads with a state in the place of attention: the gated delta rule (numerics 4.4).
struct RecurrentSpec {
  static constexpr PartRole kRole = PartRole::mixer;
  int key_heads = 0, heads = 0;      // heads of values; key_heads divides it
  int key_size = 0, value_size = 0;  // of a head, at most 256
  int taps = 0;                      // of the short convolution: 2 to 8
  bool doubles = false;              // OLMo Hybrid: factors up to 2, so that eigenvalues may be < 0
  float norm_eps = 0;                // of the heads' norm; 0: the model's

  int key_width() const { return key_heads * key_size; }
  int value_width() const { return heads * value_size; }
  bool operator==(const RecurrentSpec&) const = default;
};

// Heads with a state in the place of attention: the delta rule with a decay for each channel of a
// key (Kimi Delta Attention, numerics 4.4).
struct ChannelDeltaSpec {
  static constexpr PartRole kRole = PartRole::mixer;
  int heads = 0, size = 0;  // of a key and a value: at most 256
  int taps = 0;             // of the short convolution: 2 to 8

  int width() const { return heads * size; }
  bool operator==(const ChannelDeltaSpec&) const = default;
};

// A short convolution in the place of attention, over as many channels as the stream has (LFM2).
struct ShortConvSpec {
  static constexpr PartRole kRole = PartRole::mixer;
  int taps = 0;  // 2 to 8

  bool operator==(const ShortConvSpec&) const = default;
};

// Heads with a state in the place of attention: Mamba 2 (numerics 4.4).
struct StateSpaceSpec {
  static constexpr PartRole kRole = PartRole::mixer;
  int groups = 0, heads = 0;          // groups of heads share queries and keys; divides heads
  int state_size = 0, head_size = 0;  // of a query or key, of a value: at most 256
  int taps = 0;                       // of the short convolution: 2 to 8
  int norm_groups = 1;      // of the norm of all heads' values: 1, or `groups`; 0: there is no norm
  bool norm_first = false;  // the norm stands before the gate, else behind it
  bool conv_bias = false;
  bool is_beside = false;  // Falcon H1: a mixer beside the layer's attention
  float least_step = 0, most_step = std::numeric_limits<float>::infinity();

  int width() const { return heads * head_size; }
  bool operator==(const StateSpaceSpec&) const = default;
};

struct DenseFfnSpec {
  static constexpr PartRole kRole = PartRole::network;
  int width = 0;  // F
  NormPlace norms = NormPlace::before;
  Nonlinearity curve = Nonlinearity::silu;
  bool is_gated = true;      // Falcon: down(curve(up(x))), without a gate
  bool is_parallel = false;  // Falcon: it reads what attention reads, not what attention made of it

  bool operator==(const DenseFfnSpec&) const = default;
};

// In place of the dense network: of many gated ones every row goes through a few (numerics 7).
struct ExpertsSpec {
  static constexpr PartRole kRole = PartRole::network;
  Routing routing;
  int width = 0;                 // F of an expert
  bool has_choice_bias = false;  // DeepSeek-V3: e_score_correction_bias
  int shared_width = 0;          // of the expert that every row goes through; 0: there is none
  bool shared_gate = false;      // Qwen2-MoE: what it adds is multiplied by a logistic function
  bool has_biases = false;       // gpt_oss: of the router and of every expert
  Nonlinearity curve = Nonlinearity::silu;
  bool is_gated = true;        // Nemotron: down(curve(up(x))), of the shared one, too
  bool weighs_inputs = false;  // Llama 4: weights multiply what an expert reads, not what it gives
  // Gemma 4: beside the layer's dense network. Each has a norm before and behind it, the router one
  // of its own, experts' weights are multiplied by a number of each, and a norm is behind the sum.
  bool is_beside = false;

  bool operator==(const ExpertsSpec&) const = default;
};

// The end of a layer of Gemma 4 (numerics 4.5): the vector that the token itself brings is added,
// and then the stream is multiplied by a number of the layer.
struct LayerEndSpec {
  static constexpr PartRole kRole = PartRole::end;
  int input_width = 0;  // of what a token brings to each layer; 0: nothing
  Nonlinearity curve = Nonlinearity::gelu_tanh;

  bool operator==(const LayerEndSpec&) const = default;
};

// A residual block is all that its layer has (Medusa).
struct ResidualBlockSpec {
  static constexpr PartRole kRole = PartRole::mixer;
  bool has_bias = false;
  bool reads_feature = false;  // begins with the normed last hidden state of another decoder

  bool operator==(const ResidualBlockSpec&) const = default;
};

using PartSpec =
    std::variant<JoinSpec, ResidualBlockSpec, AttentionSpec, RecurrentSpec, ChannelDeltaSpec,
                 ShortConvSpec, StateSpaceSpec, DenseFfnSpec, ExpertsSpec, LayerEndSpec>;

inline PartRole role_of(const PartSpec& part) {
  const StateSpaceSpec* state_space = std::get_if<StateSpaceSpec>(&part);
  if (state_space && state_space->is_beside) return PartRole::beside;
  const ExpertsSpec* experts = std::get_if<ExpertsSpec>(&part);
  if (experts && experts->is_beside) return PartRole::network_beside;
  return std::visit([](const auto& spec) { return spec.kRole; }, part);
}

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
  // At its place; the part of the same role that the layer had is gone.
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
// Of a family's norms: x / rms(x) * w, or (x - mean) / deviation * w + b (Falcon).
enum class NormKind { rms, layer };

// Falcon H1: what matrices are multiplied by as they are read.
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
  int kv_heads = 0;  // K: key/value heads; divides heads
  int head_dim = 0;  // E: 8 to 256, of latents to 576, even
  int vocab = 0;     // V: rows of the embedding
  // Of the embedding, where those are not V; 0: it is another decoder's.
  int embedding_rows = -1;
  int max_positions = 0;  // positions 0 .. max_positions - 1 exist
  float norm_eps = 0;
  bool is_text_tower = false;    // of a model that reads images, too
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
  float residual_scale = 1;   // Granite: what a part adds is multiplied by it
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
  bool keys_are_shared(int index) const {
    for (int other = index + 1; other < layers; ++other)
      if (kv_layer(other) == index) return true;
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
  // The module's is as the last one that attends, without a window, behind a join.
  LayerSpec layer(int index) const {
    if (index < layers) return layer_specs[static_cast<size_t>(index)];
    const auto last = std::find_if(layer_specs.rbegin(), layer_specs.rend(),
                                   [](const LayerSpec& each) { return each.attention(); });
    LayerSpec module = last == layer_specs.rend() ? layer_specs.back() : *last;
    if (AttentionSpec* attention = module.attention()) attention->window = 0;
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

// Whether rows see what stands behind them, so that a text is computed whole.
inline bool sees_ahead(const DecoderSpec& spec) {
  const AttentionSpec* first = spec.first<AttentionSpec>();
  return first && first->sees_ahead;
}

// How many experts a token goes through, in all layers.
inline int routed_columns(const DecoderSpec& spec) {
  int columns = 0;
  for (const LayerSpec& layer : spec.layer_specs) columns += layer.chosen_experts();
  return columns;
}

}  // namespace invar
