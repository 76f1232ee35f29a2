// Sampling parameters that requests leave open, as a model's files say them, or the publisher of
// its family.
#pragma once

#include <string>
#include <string_view>

#include "weights/hf_directory.h"

namespace invar {

struct SaidSampling {
  json::Value config;  // an object with members of generation_config.json, maybe none of these
  std::string from;    // "generation_config.json", "GGUF", "the family qwen3", or "none"
};

// A directory with a generation_config.json has that file's, a GGUF file its metadata's. A model
// with a chat template that has neither gets what is recommended for its family.
SaidSampling said_sampling(const HfDirectory& model, std::string_view family);

}  // namespace invar
