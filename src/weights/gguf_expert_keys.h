// Reads a GGUF file's metadata of experts as the keys of a config.json: a function for each
// architecture that has them. No key says whether the weights of the chosen ones are made to sum to
// 1: that follows from the architecture.
#pragma once

#include "weights/gguf_keys.h"

namespace invar {

// How many there are and how many a token has, under the name that the family has for the former;
// `layers` have routers.
void add_expert_counts(const GgufKeys& in, json::Value& config, const char* name,
                       const std::vector<int64_t>& layers);
// Groups, the scale of weights, and whether they are made to sum to 1.
void add_expert_weights(const GgufKeys& in, json::Value& config);

void add_mixtral_experts(const GgufKeys& in, json::Value& config);
void add_qwen2_experts(const GgufKeys& in, json::Value& config);
void add_qwen3_experts(const GgufKeys& in, json::Value& config);
void add_olmoe_experts(const GgufKeys& in, json::Value& config);
void add_granite_experts(const GgufKeys& in, json::Value& config);
void add_gpt_oss_experts(const GgufKeys& in, json::Value& config);
void add_glm_experts(const GgufKeys& in, json::Value& config);
// Attention to a latent; `ending` of the keys of a head's own lengths.
void add_latent(const GgufKeys& in, json::Value& config, std::string_view ending);
// With its latents.
void add_deepseek(const GgufKeys& in, json::Value& config);

// Whether the file is of the second one of two families of one architecture: llama with experts is
// Mixtral; deepseek2 whose routers are no sigmoids is the second version and not the third.
bool gguf_is_second(const GgufKeys& in);

}  // namespace invar
