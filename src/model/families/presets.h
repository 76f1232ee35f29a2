// Shapes of known models, for made weights. A preset has no token ids: those come with a tokenizer.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoder_spec.h"

namespace invar {

// "tiny", "bench-100m", "bench-473m", "qwen3-8b", ...
std::vector<std::string> preset_names();
bool is_preset(std::string_view name);
// Throws UsageError naming the presets when there is no such one.
DecoderSpec preset_spec(std::string_view name);

// Changes to a preset; what is not given stays.
struct SpecOverrides {
  std::optional<std::string> family = {};
  std::optional<int> hidden = {}, layers = {}, heads = {}, kv_heads = {}, head_dim = {}, ffn = {};
  std::optional<int> vocab = {}, max_positions = {};
  std::optional<int> experts = {}, chosen_experts = {};
  std::optional<int> window = {};  // of every layer; 0: none
  std::optional<bool> tied_head = {};
};

// Throws UsageError when the result cannot be computed or its family cannot say it in config.json.
DecoderSpec override_spec(DecoderSpec spec, const SpecOverrides& overrides);

}  // namespace invar
