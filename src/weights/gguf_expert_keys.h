// What a GGUF file's metadata says of experts, as the keys of a config.json: a function for each
// architecture that has them. Whether the weights of those that are chosen are made to sum to 1 no
// key says: it follows from the architecture.
#pragma once

#include "weights/gguf_keys.h"

namespace invar {

void add_mixtral_experts(const GgufKeys& in, json::Value& config);
void add_qwen2_experts(const GgufKeys& in, json::Value& config);
void add_qwen3_experts(const GgufKeys& in, json::Value& config);
void add_olmoe_experts(const GgufKeys& in, json::Value& config);
void add_granite_experts(const GgufKeys& in, json::Value& config);
void add_gpt_oss_experts(const GgufKeys& in, json::Value& config);

}  // namespace invar
