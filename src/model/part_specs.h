// The parts of a layer as plain data: a struct for each kind, with one field for each choice that a
// family makes. The parts that compute them are in model/parts.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
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

// A part has an RMSNorm of its input (x = norm(h)), of its output before that is added to the
// residual stream (h + norm(y)), both or none.
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
  beside,          // another mixer, with the same input
  network,         // each row for itself
  network_beside,  // another one, with the same input
  end,             // behind all others
};

// The beginning of a layer that continues from hidden states: for every row there are the embedding
// e of a token and a hidden state h. The defaults are those of the module of multi-token
// prediction.
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

// Chooses the positions that a row attends to (DeepSeek-V3.2, section 2.1): those with the highest
// scores of heads of its own, whose keys a sequence keeps beside its latents (numerics 4.6).
struct IndexerSpec {
  int heads = 0, size = 0;      // of its queries; they have one key of `size`, a multiple of 32
  int most = 0;                 // positions
  bool is_interleaved = false;  // what turns stands in neighbouring pairs in the checkpoint
  bool is_shared =
      false;  // the layer has none: it attends to what the last one before it that has one chose

  bool operator==(const IndexerSpec&) const = default;
};

// Attention whose keys and values are one latent vector of each position for all heads (DeepSeek).
// The decoder then has one key/value head, of the latent and the elements that turn beside it.
struct LatentSpec {
  int rank = 0;        // elements of the latent: a multiple of 32
  int rope = 0;        // elements beside it that turn, and of each query
  int nope = 0;        // elements of a query that do not turn: a multiple of 32
  int value = 0;       // elements of a head's output
  int query_rank = 0;  // elements of the vector that queries are products of; 0: of the input
  double mscale = 0;   // mscale_all_dim of a rotation with yarn
  float norm_eps = 0;  // for the norms of latents and of queries' vectors; 0: the model's
  std::optional<IndexerSpec> indexer = {};  // none: a row attends to every earlier position

  bool operator==(const LatentSpec&) const = default;
};
inline constexpr int kMaxHeadDim = 576;       // a latent and the elements that turn beside it
inline constexpr int kMaxLayerHeadDim = 512;  // in a layer with a head size of its own

// Queries of later positions grow by 1 + scale * log(1 + floor((position + 1) / step)).
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
  double score_scale = 0;        // Gemma, Granite: scores are multiplied by it; 0: 1 / sqrt(E)
  float score_cap = 0;           // Gemma 2: scores are cap * tanh(score / cap); 0: as they are
  bool has_output_gate = false;  // Qwen3-Next: its output is multiplied by a logistic function
  bool has_sinks = false;       // gpt_oss: a number of each head joins its softmax, without a value
  bool has_unit_heads = false;  // Llama 4: heads of q and k have a norm without weights, turned
  std::optional<GrowthSpec> growth = {};  // Llama 4: queries grow in layers without a rotation
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
  bool is_parallel = false;  // Falcon: it reads attention's input, not the stream behind attention

  bool operator==(const DenseFfnSpec&) const = default;
};

// Many gated networks in place of the dense one: every row goes through a few (numerics 7).
struct ExpertsSpec {
  static constexpr PartRole kRole = PartRole::network;
  Routing routing;
  int width = 0;   // F of an expert
  int latent = 0;  // Nemotron 3: elements that experts read and give, made of the input; 0: D
  bool has_choice_bias = false;  // DeepSeek-V3: e_score_correction_bias
  int shared_width = 0;          // of the expert that every row goes through; 0: there is none
  bool shared_gate = false;      // Qwen2-MoE: its output is multiplied by a logistic function
  bool has_biases = false;       // gpt_oss: the router and every expert have them
  Nonlinearity curve = Nonlinearity::silu;
  bool is_gated = true;        // Nemotron: down(curve(up(x))), of the shared one, too
  bool weighs_inputs = false;  // Llama 4: weights multiply an expert's input, not its output
  // Gemma 4: beside the layer's dense network. Each has a norm before and behind it, the router one
  // of its own, experts' weights are multiplied by a number of each, and a norm is behind the sum.
  bool is_beside = false;

  bool operator==(const ExpertsSpec&) const = default;
};

// The end of a layer of Gemma 4 (numerics 4.5): the vector that the token itself brings is added,
// and then the stream is multiplied by a number of the layer.
struct LayerEndSpec {
  static constexpr PartRole kRole = PartRole::end;
  int input_width = 0;  // of the vector that a token brings to each layer; 0: none
  Nonlinearity curve = Nonlinearity::gelu_tanh;

  bool operator==(const LayerEndSpec&) const = default;
};

// A residual block, the only part of its layer (Medusa).
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

}  // namespace invar
