// What a decoder is, as plain data: one field for each choice that a family makes. The forward
// reads nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace invar {

// Rotary frequencies. Scalings that depend on the length seen (dynamic NTK, LongRope) are refused
// (numerics 5).
struct RopeSpec {
  enum class Scaling { none, linear, llama3 };
  double theta = 10000.0;
  Scaling scaling = Scaling::none;
  double factor = 1.0;            // linear, llama3
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  double original_positions = 0;  // llama3: positions of the first training stage

  bool operator==(const RopeSpec&) const = default;
};

// Where the RMSNorms of a part stand: of what it reads (x = norm(h)), of what it adds to the
// residual stream (h + norm(y)), or both.
enum class NormPlace { before, after, both };

constexpr bool is_before(NormPlace norms) {
  return norms != NormPlace::after;
}
constexpr bool is_after(NormPlace norms) {
  return norms != NormPlace::before;
}

struct AttentionSpec {
  int window = 0;  // a query at p sees keys j with p - window < j <= p; 0 = all of them
  std::optional<RopeSpec> rope = RopeSpec{};  // none: queries and keys are not rotated
  NormPlace norms = NormPlace::before;

  bool operator==(const AttentionSpec&) const = default;
};

struct DenseFfnSpec {
  int width = 0;  // F; 0: the layer has no such part
  NormPlace norms = NormPlace::before;

  bool operator==(const DenseFfnSpec&) const = default;
};

// The parts of one layer, in the order in which they run (model/parts).
struct LayerSpec {
  AttentionSpec attention;
  DenseFfnSpec ffn;

  bool operator==(const LayerSpec&) const = default;
};

struct DecoderSpec {
  std::string family;  // "llama", "mistral", "qwen2", "qwen3"
  int hidden = 0;      // D: width of the residual stream
  int layers = 0;
  // 0 or 1: modules that predict one token further (multi-token prediction, DeepSeek-V3, section
  // 2.2). The module's decoder block is layer number `layers`; plain decoding ignores it.
  int mtp_layers = 0;
  int heads = 0;          // H: query heads
  int kv_heads = 0;       // K: key/value heads; divides heads
  int head_dim = 0;       // E: 8 to 256, even
  int vocab = 0;          // V: rows of the embedding
  int max_positions = 0;  // positions 0 .. max_positions - 1 exist
  float norm_eps = 0;
  bool qkv_bias = false;               // Qwen2; Llama with attention_bias
  bool o_bias = false;                 // Llama with attention_bias
  bool mlp_bias = false;               // Llama with mlp_bias
  bool qk_norm = false;                // Qwen3: RMSNorm of every query and key head before rotation
  bool tied_head = false;              // the head is the embedding
  std::vector<LayerSpec> layer_specs;  // [layers]

  int query_width() const { return heads * head_dim; }
  int kv_width() const { return kv_heads * head_dim; }
  int all_layers() const { return layers + mtp_layers; }
  // The module's is as the last one, without a window.
  LayerSpec layer(int index) const {
    if (index < layers) return layer_specs[static_cast<size_t>(index)];
    LayerSpec module = layer_specs.back();
    module.attention.window = 0;
    return module;
  }
  void set_layers(const LayerSpec& each) {
    layer_specs.assign(static_cast<size_t>(layers > 0 ? layers : 0), each);
  }
  bool operator==(const DecoderSpec&) const = default;
};

}  // namespace invar
