#include "engine/request_state.h"

#include <algorithm>

namespace invar {

RequestState::RequestState(Request asked, int32_t vocab)
    : request(std::move(asked)),
      tokens(request.prompt),
      constraint(request.constraint, request.thought, vocab) {
  if (request.params.has_penalties()) history = TokenHistory(request.prompt);
  if (request.begun.empty()) return;
  for (const int32_t token : request.begun) enter(token);
  hash = LogitsHash(request.begun_hash);
  prompt_logprobs_done = prompt_size();
}

void RequestState::enter(int32_t token) {
  tokens.push_back(token);
  constraint.advance(token, request.params);
  if (request.params.has_penalties()) history.push(token);
}

void RequestState::reserve(int32_t max_model_len) {
  tokens.reserve(static_cast<size_t>(
      std::min(int64_t{max_model_len}, int64_t{prompt_size()} + request.params.max_tokens)));
}

SampleInput RequestState::sample_input(int32_t position) const {
  return {.params = &request.params,
          .position = position,
          .choice = request.choice,
          .generated = position - prompt_size(),
          .history = &history,
          .answer = std::span(tokens).subspan(request.prompt.size())};
}

TokenOutput RequestState::take(int32_t token, const Digest& digest) {
  TokenOutput output{.request = request.id, .token = token, .index = answer_size()};
  enter(token);
  if (request.hash_logits) {
    hash.add(digest);
    output.logits_hash = hash.value();
  }
  output.finish = finish_reason(token);
  const char* fault = output.finish == FinishReason::stop ? constraint.fault_at_end() : nullptr;
  if (!fault) return output;
  TokenOutput failed = fail(fault);
  failed.index = output.index;
  return failed;
}

TokenOutput RequestState::fail(const char* error) {
  has_failed = true;
  return {.request = request.id,
          .index = answer_size(),
          .finish = FinishReason::failed,
          .error = error};
}

FinishReason RequestState::finish_reason(int32_t token) const {
  const SamplingParams& params = request.params;
  if (is_stop(params, token) || !constraint.goes_on()) return FinishReason::stop;
  return answer_size() >= params.max_tokens ? FinishReason::length : FinishReason::none;
}

}  // namespace invar
