// From config.json to a DecoderSpec, and back. Families are rows of one table over the one decoder;
// a key that changes the arithmetic and is not implemented is refused by name, never ignored.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/decoder_spec.h"
#include "model/pooling.h"

namespace invar {

// The head behind the last norm: logits of tokens; nothing, in a model that makes embeddings
// alone; or the scores of a cross-encoder, the last module of its pooling.
enum class Head : uint8_t { tokens, none, classes };

struct ModelConfig {
  DecoderSpec spec;
  std::optional<int> bos_id;
  std::vector<int> eos_ids;  // ascending: those of both files
  // Ascending: keys of config.json that nobody knows and that somebody says change nothing.
  std::vector<std::string> ignored_keys;
  Pooling pooling;  // of embeddings; of files beside config.json (read_pooling)
  Head head = Head::tokens;
  json::Value quantization;  // quantization_config as it stands there, or null

  bool operator==(const ModelConfig&) const = default;
};

// Reads config.json and generation_config.json (null: there is none) of a model, in the older and
// the newer spelling. Absent keys have the defaults of transformers. `where` names the directory in
// errors. A key that nobody knows may change the arithmetic: it is refused unless it is one of
// `ignored`. Throws Error, and UsageError where one of `ignored` is known.
ModelConfig parse_model_config(const json::Value& config, const json::Value& generation_config,
                               std::string_view where,
                               const std::vector<std::string>& ignored = {});

// config.json in the older spelling, which every reader knows; parse_model_config gives the same
// spec back.
json::Value config_json(const ModelConfig& config);
json::Value generation_config_json(const ModelConfig& config);

// Adjusts a spec to a server that takes texts of up to so many tokens (RopeSpec::is_long).
void set_context(DecoderSpec& spec, int64_t positions);

// Throws Error unless the sizes fit together and can be computed. `where` begins the sentence.
void check_spec(const DecoderSpec& spec, std::string_view where);

// "llama", "mistral", "qwen2", "qwen3", "gemma3_text", ...
std::vector<std::string> family_names();
// Sets the family and what it implies of these sizes (biases, norms, scales); sizes, windows and
// rotations stay. Throws UsageError when unknown.
void set_family(DecoderSpec& spec, std::string_view family);

}  // namespace invar
