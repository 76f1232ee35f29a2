// Sampling parameters that requests leave open, and who says them.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/model_options.h"
#include "sampling/params.h"

namespace invar {

struct SamplingDefaults {
  SamplingParams params;
  std::string from;  // "generation_config.json", "GGUF", "the family qwen3", or "none"
};

// The values that the model's generation_config.json names, as vLLM reads it, or a GGUF file's
// metadata. A model that chats and has no such file and no such metadata gets those that its
// family's publisher recommends (model/families/said_sampling.h).
SamplingDefaults find_sampling_defaults(const ModelOptions& options);

// The parameters that such a file may name, as JSON, by their names.
json::Value defaults_json(const SamplingParams& defaults);

}  // namespace invar
