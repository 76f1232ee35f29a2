// Parts that whole answers and events of a stream share.
#pragma once

#include <optional>
#include <span>

#include "frontend/openai.h"

namespace invar::openai {

// The text of a prompt, for an answer that repeats it.
std::string echo_of(const Prompt& prompt, const Tokenizer& tokenizer);

json::Array ids_of(const std::vector<int32_t>& tokens);

// How log-probabilities call a token: its text, or "token_id:5".
struct TokenNames {
  const Tokenizer& tokenizer;
  bool as_ids = false;

  std::string text(int32_t token) const;
};

// Which weights computed which tokens: [{"weight_version", "tokens", "version", "start", "end"}].
json::Value weight_versions(const TextAnswer& answer);
// Whether it can be computed again: to its end, by one model.
bool can_be_proved(const TextAnswer& answer);
// Whether an answer says what its log-probabilities are of: where they are not the model's own.
bool shows_logprobs_mode(const SamplingParams& params);
// The log-probabilities of the prompt and, unless `prompt_only`, of the answer, for an echo.
std::vector<TokenLogprobs> all_logprobs(const TextAnswer& answer, bool prompt_only);

json::Value usage(int64_t prompt, int64_t completion);
// How many of the prompts' tokens the prefix cache had, where that is said.
void add_cached(json::Value& usage, std::optional<int64_t> tokens);
// Adds how much of the request's prediction was accepted and rejected, over all answers.
void add_prediction(json::Value& usage, int64_t accepted, int64_t rejected);

// How many of the tokens were thoughts, all answers together; beside what is said of predictions.
void add_thoughts(json::Value& usage, int64_t tokens);

// The bound on the answers' length, as a request says it.
int64_t shown_length(const Request& request);

// Whether the tool is one whose calls are a text.
bool is_custom_tool(const Request& request, const std::string& name);

// Why the answer ended; one that is too long may have cut its last call of a tool.
const char* finish_reason(const TextAnswer& answer, bool calls_tools);

// vLLM's stop_reason: the stop string or token id of the request that ended the answer, or null.
json::Value stop_reason(const Request& request, const TextAnswer& answer);

// The log-probabilities of some of an answer's tokens in the endpoint's form. `offset` is where
// their text begins in the answer and moves past it.
json::Value logprobs_of(Endpoint endpoint, const TokenNames& names,
                        std::span<const TokenLogprobs> some, int64_t& offset);
// vLLM's prompt_logprobs: null for the first token, then {"id": {logprob, rank, decoded_token}}.
json::Value prompt_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprobs> all);
// Their text, entry by entry.
void append_prompt_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprobs> all,
                            std::string& out);

}  // namespace invar::openai
