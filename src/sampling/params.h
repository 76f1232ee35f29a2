// How tokens are drawn, by the names and with the defaults of vLLM.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace invar {

struct SamplingParams {
  float temperature = 1.0f;  // 0 is greedy
  uint64_t seed = 0;
  int max_tokens = 16;
  std::vector<int32_t> stop_token_ids;  // each ends the answer
  bool logprobs = false;                // of the drawn tokens
  bool prompt_logprobs = false;         // of the prompt's tokens
};

struct TokenLogprobs {
  int32_t token = 0;
  float logprob = 0;  // raw: of the model's logits
};

// Throws UsageError, with one sentence, for values that make no sense.
void validate(const SamplingParams& params, int vocab);

bool is_stop(const SamplingParams& params, int32_t token);

}  // namespace invar
