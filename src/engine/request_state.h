// A live request: what it asked, its tokens so far, what its next sample depends on.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/pooled_vector.h"
#include "engine/request.h"
#include "numerics/logits_hash.h"
#include "sampling/constraint_cursor.h"
#include "sampling/sampler.h"

namespace invar {

struct RequestState {
  RequestState(Request asked, int32_t vocab);

  Request request;
  std::vector<int32_t> tokens;  // the prompt and the answer so far
  TokenHistory history;         // for penalties: a function of the tokens
  ConstraintCursor constraint;  // likewise
  LogitsHash hash;
  bool begun = false;    // a step has computed some of it
  int32_t adapter = -1;  // its slot (AdapterSlots), while it has one
  bool has_failed = false;
  bool is_over = false;  // has ended or was aborted: steps in flight compute it in vain
  // Which of the tokens that the step in flight samples is its next one.
  int32_t sampled_at = -1;
  // Positions whose log-probability was given: after a preemption, not again.
  int32_t prompt_logprobs_done = 1;
  std::vector<int16_t> routed;  // of its tokens so far; after a preemption not again
  PooledVector pool;  // of a pooled request; what it took it does not take again after a preemption

  int32_t prompt_size() const { return static_cast<int32_t>(request.prompt.size()); }
  int32_t answer_size() const { return static_cast<int32_t>(tokens.size()) - prompt_size(); }
  bool wants_logprob_of(int32_t position) const {
    return request.params.prompt_logprobs && position >= prompt_logprobs_done &&
           position < prompt_size();
  }

  // Room for the answer, which only those take that no longer wait.
  void reserve(int32_t max_model_len);
  // Whether its next sample depends on more of the tokens before it than their number.
  bool samples_by_tokens() const {
    return request.constraint || request.thought || request.params.has_penalties() ||
           !request.params.bad_words.empty();
  }
  // The input by which the token at `position` is sampled, but for the logits and the mask.
  SampleInput sample_input(int32_t position) const;
  // The same of the token after the last.
  SampleInput sample_input() const { return sample_input(static_cast<int32_t>(tokens.size())); }
  // The answer goes on with `token`; what the sink is told of it, without log-probabilities.
  // `digest`: of its logits, where the request wants them hashed.
  TokenOutput take(int32_t token, const Digest& digest);
  // The answer ends for this reason, a sentence.
  TokenOutput fail(const char* error);

 private:
  void enter(int32_t token);
  FinishReason finish_reason(int32_t token) const;
};

}  // namespace invar
