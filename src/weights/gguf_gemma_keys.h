// Translates a GGUF file's metadata of Gemma 4, whose layers have numbers of their own, into keys
// of a config.json, and back.
#pragma once

#include "weights/gguf_keys.h"
#include "weights/gguf_writer.h"

namespace invar {

// Reads the tensor of frequencies, too, which says how much of a head turns. The configuration has
// its windows.
void add_gemma4(const GgufKeys& in, json::Value& config);

// For a model that is written, of the layers that its configuration lists.
void add_gemma4_keys(const json::Value& config, const std::string& name,
                     std::vector<GgufKey>& keys);

// The divisor of each pair of a head's elements for its frequency in layers without a window: 1
// where it turns, and else so much that it does not.
std::vector<float> gemma4_rope_factors(int head_dim, int rotated);

}  // namespace invar
