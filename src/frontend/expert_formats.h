// The experts of an answer's tokens in the forms of RL stacks.
#pragma once

#include "base/json.h"

namespace invar::rollout {

// The experts of a completion's choice: those of the prompt's tokens and the answer's but the last,
// in the order of the text, a list of all layers' for each.
json::Array expert_rows(const json::Value& choice);

// [tokens][layers][experts], SkyRL's.
json::Value nested_experts(const json::Array& rows, int32_t layers);
// The same as base64 of an .npy file of u16, vLLM's.
json::Value npy_experts(const json::Array& rows, int32_t layers);
// [tokens][layers * experts] of i32 in base64, SGLang's.
json::Value packed_experts(const json::Array& rows);

}  // namespace invar::rollout
