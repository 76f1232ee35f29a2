// What a decoder is, as plain data: one field for each choice that a family makes. The forward
// reads nothing else.
#pragma once

#include <cstdint>
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
  int ffn = 0;            // F: width of the gated layer
  int vocab = 0;          // V: rows of the embedding
  int max_positions = 0;  // positions 0 .. max_positions - 1 exist
  float norm_eps = 0;
  bool qkv_bias = false;   // Qwen2; Llama with attention_bias
  bool o_bias = false;     // Llama with attention_bias
  bool mlp_bias = false;   // Llama with mlp_bias
  bool qk_norm = false;    // Qwen3: RMSNorm of every query and key head before rotation
  bool tied_head = false;  // the head is the embedding
  RopeSpec rope;
  std::vector<int>
      windows;  // [layers]: a query at p sees keys j with p - window < j <= p; 0 = all of them

  int query_width() const { return heads * head_dim; }
  int kv_width() const { return kv_heads * head_dim; }
  int all_layers() const { return layers + mtp_layers; }
  int window(int layer) const { return layer < layers ? windows[static_cast<size_t>(layer)] : 0; }
  bool operator==(const DecoderSpec&) const = default;
};

}  // namespace invar
