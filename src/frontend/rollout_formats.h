// Requests and answers of RL stacks for rollouts, to and from /v1/completions: the native form of
// SGLang (slime, SkyRL, AReaL) and that of TRL's `trl vllm-serve`.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace invar::rollout {

// How an answer is to be shown: all that is kept of a request's body until then.
struct Shown {
  bool is_list = false;   // the answer is a list, also of one
  bool is_batch = false;  // of several prompts
  size_t per_prompt = 1;  // answers to each of them
  bool has_logprobs = false;
  size_t top = 0;  // log-probabilities of so many likeliest tokens beside each
};

// A request as /v1/completions has it.
struct Asked {
  json::Value body;
  Shown shown;
  json::Value exact_version;  // of the weights that it is to be computed by; null: any
};

// {"exact_version": TEXT}, or that alone, as a text; versions that are numbers are called so.
// Throws UsageError.
json::Value exact_version_of(const json::Value& asked);

// {"input_ids" or "text", "sampling_params", "return_logprob"}. Throws UsageError with one
// sentence.
Asked asked_of_sglang(const json::Value& body);
// For each answer {"text", "output_ids", "meta_info"}; `answer`: the body of /v1/completions.
json::Value sglang_answer(const Shown& shown, const json::Value& answer,
                          const std::string& weight_version);

// {"prompts": [texts or token ids], "n", "temperature", ..., "logprobs", "generation_kwargs"}.
Asked asked_of_trl(const json::Value& body);
// {"prompt_ids", "completion_ids", "logprobs", "logprob_token_ids"}: a list for each answer.
json::Value trl_answer(const Shown& shown, const json::Value& answer,
                       const std::string& weight_version);

}  // namespace invar::rollout
