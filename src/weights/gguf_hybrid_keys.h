// Translates a GGUF file's metadata of layers that have states into keys of a config.json, and
// back: a function for each architecture that has such layers. A list of one number for each layer
// says what a layer is.
#pragma once

#include "weights/gguf_keys.h"
#include "weights/gguf_writer.h"

namespace invar {

void add_lfm2(const GgufKeys& in, json::Value& config);
void add_lfm2_experts(const GgufKeys& in, json::Value& config);
void add_granite_states(const GgufKeys& in, json::Value& config);
void add_nemotron(const GgufKeys& in, json::Value& config);
void add_nemotron_experts(const GgufKeys& in, json::Value& config);
void add_qwen3_next(const GgufKeys& in, json::Value& config);
void add_qwen3_5(const GgufKeys& in, json::Value& config);
void add_qwen3_5_experts(const GgufKeys& in, json::Value& config);
void add_falcon(const GgufKeys& in, json::Value& config);
void add_kimi(const GgufKeys& in, json::Value& config);

// Keys of Falcon H1: by how much a file's embedding is multiplied and its head divided, so that
// other readers need not do so. Where they are there, these tensors hold bf16 numbers times them.
inline constexpr const char* kFoldedEmbeddingScale = "folded.embedding_scale";
inline constexpr const char* kFoldedLogitsDivisor = "folded.logits_divisor";

// The largest of all layers' numbers.
int64_t largest_of_layers(const GgufKeys& in, std::string_view name);

// For a model that is written: says what its layers are, and their sizes.
void add_hybrid_keys(const json::Value& config, const std::string& name,
                     std::vector<GgufKey>& keys);

}  // namespace invar
