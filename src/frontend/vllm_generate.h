// vLLM's tokens in, tokens out: /inference/v1/generate, and SkyRL's /skyrl/v1/generate, to and from
// /v1/completions.
#pragma once

#include <string>

#include "frontend/rollout_formats.h"

namespace invar::rollout {

// The parts of a request that are kept until its answer is shown.
struct GenerateForm {
  std::string request_id;
  bool has_text = false;       // output_mode "text"
  bool has_prompt = false;     // return_token_ids
  bool nests_experts = false;  // as lists, SkyRL's; else as base64 of an .npy file
  int32_t routed_layers = 0;   // of the model
  bool has_begun = false;      // of a stream: an event was shown
  std::string weight_version;  // that computes it
};

struct GenerateAsked {
  json::Value body;  // as /v1/completions has it
  GenerateForm form;
  json::Value exact_version;  // Asked's
};

// {"token_ids", "sampling_params", "model", "stream", "output_mode", "return_token_ids", ...}.
// An answer whose length is not said may fill the rest of `context` tokens, as vLLM's does. Fields
// that a rendered request has beside are ignored. Throws UsageError with one sentence.
GenerateAsked asked_of_generate(const json::Value& body, int32_t context);

// {"request_id", "output_mode", "choices": [{"token_ids", "logprobs", "finish_reason", ...}], ...}
json::Value generate_answer(const GenerateForm& form, const json::Value& answer);
// The same of an event of its stream; null: the event says nothing here.
json::Value generate_event(GenerateForm& form, const json::Value& event);

}  // namespace invar::rollout
