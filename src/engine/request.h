// The engine's requests and answers: token ids in, token ids out. It does not read a request's
// text, which is for the owner of the tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/field_list.h"
#include "base/sha256.h"
#include "base/shared.h"
#include "sampling/constraint.h"
#include "sampling/logprob.h"
#include "sampling/params.h"
#include "sampling/stop_strings.h"
#include "sampling/thought.h"

namespace invar {

// A low-rank adapter that a request is computed with (numerics 2.4), as its reader describes it.
struct RequestAdapter {
  std::string name;       // that the client knows
  std::string directory;  // as PEFT saves it, or a GGUF file
  int32_t rank = 0;       // the largest of its modules
  Digest digest{};        // LoraAdapter::digest

  bool operator==(const RequestAdapter&) const = default;
};

// The answers of one request share what they have in common.
struct Request {
  int64_t id = 0;  // unique among the live requests of an engine
  Shared<std::vector<int32_t>> prompt;
  SamplingParams params;
  bool params_are_checked = false;         // by check_params: they are as `checked` returns them
  std::shared_ptr<Constraint> constraint;  // the language of the answer; null: any text
  std::shared_ptr<const ThoughtRules> thought;  // rules that end its thought; null: the model alone
  int32_t choice = 0;  // which of the n answers to one prompt this is: part of the noise's counter
  // The form of its answer as JSON, from which ConstraintCompiler makes `constraint` and `thought`
  // where the vocabulary's bytes are known. The engine does not read it.
  Shared<std::string> structured_output;
  // How the answer becomes text (AnswerBuilder): texts that end it, whether it ends with the one
  // that did, whether special tokens give no text, which of them do all the same, and what is a
  // thought. The engine does not read them.
  StopSet stop;
  bool include_stop = false, skip_special = true;
  Shared<std::vector<int32_t>> shown_special;
  ThoughtView thoughts;
  Shared<std::string> cache_salt;                 // only requests of one salt share cached blocks
  std::shared_ptr<const RequestAdapter> adapter;  // null: the model alone
  int32_t priority = 0;                           // smaller is sooner among those that wait
  int64_t owner = 0;                              // SequenceSpec::owner
  bool hash_logits =
      true;  // keep the hash of every position whose logits are sampled from (numerics 8)
  // Tokens that the answer may be, to draft from; no bit depends on it.
  Shared<std::vector<int32_t>> prediction;
  // Keeps which experts its tokens go through (TokenOutput::routed_experts).
  bool routed_experts = false;
  // Tokens of its answer that stand already, and the hash behind them: it goes on behind these, by
  // whatever weights there are now.
  Shared<std::vector<int32_t>> begun;
  Digest begun_hash{};
  // Asks for no answer but for one vector of the prompt's final hidden states.
  bool pooled = false;
};

// The fields that an engine in another process needs, in the order of its messages, and those that
// bodies and libraries have under one name. A new field of an answer is a member above, a row here,
// a member of GenerateOptions (include/invar/invar.h), and the code that it changes.
template <>
inline constexpr std::tuple kFieldsOf<Request>{
    Field("id", &Request::id, {.in_body = false}),
    Field("prompt", &Request::prompt, {.in_body = false}),
    Field("params", &Request::params, {.in_body = false}),
    Field("params_are_checked", &Request::params_are_checked, {.in_body = false}),
    Field("choice", &Request::choice, {.in_body = false}),
    Field("structured_outputs", &Request::structured_output, {.in_body = false}),
    Field("cache_salt", &Request::cache_salt),
    Field("adapter", &Request::adapter, {.in_body = false}),
    Field("logits_hash", &Request::hash_logits, {.in_body = false}),
    Field("priority", &Request::priority),
    Field("owner", &Request::owner, {.in_body = false}),
    Field("pooled", &Request::pooled, {.in_body = false}),
    Field("return_routed_experts", &Request::routed_experts),
    Field("prediction", &Request::prediction, {.in_body = false}),
    Field("begun", &Request::begun, {.in_body = false}),
    Field("begun_hash", &Request::begun_hash, {.in_body = false}),
    Field("include_stop_str_in_output", &Request::include_stop, {.crosses = false}),
    Field("skip_special_tokens", &Request::skip_special, {.crosses = false}),
};

// Checks the parameters and brings them into their one form (sampling/params.h). It is called once
// for a request: by code that needs that form before the engine, else by Engine::add. Throws
// UsageError.
void check_params(Request& request, int32_t vocab);

enum class FinishReason {
  none,    // more is to come
  stop,    // an end-of-sequence or stop token was sampled, or the constraint allows no more
  length,  // max_tokens
  // Somebody ended it before its time: what there is of it stands. Said by who serves answers, not
  // by an engine.
  aborted,
  failed,  // the row had a NaN, a key or value was not finite, or no token was allowed
};

const char* name_of(FinishReason reason);
// Whether the answer would have gone on.
constexpr bool is_cut(FinishReason reason) {
  return reason == FinishReason::length || reason == FinishReason::aborted;
}

// One token of one request, in the order in which they were sampled.
struct TokenOutput {
  int64_t request = 0;
  int32_t token = 0;
  int32_t index = 0;  // among the answer's tokens
  std::optional<TokenLogprobs> logprobs;
  FinishReason finish = FinishReason::none;
  Digest logits_hash{};         // of the answer so far; zero unless it was asked for
  const char* error = nullptr;  // of a failed one: a sentence

  // The end of an answer that failed or was ended has none.
  bool has_token() const {
    return finish != FinishReason::failed && finish != FinishReason::aborted;
  }
  // With the last token, where they were asked for: of every token of prompt and answer but the
  // last, which nothing was computed of, the experts of every layer that has some: [tokens][layers
  // with experts][C], ascending.
  std::vector<int16_t> routed_experts = {};
};

// Log-probabilities of a prompt's tokens, in chunks as they are computed.
struct PromptOutput {
  int64_t request = 0;
  int32_t position = 0;  // of the token that the logits predict: 1 and up
  TokenLogprobs logprobs;
};

// The vector that a pooled request asked for, not normalized. With h_t the residual stream behind
// the last layer at position t in f32, or the final norm of it, as the model's Pooling says: acc =
// +0; acc = acc + h_t, t ascending; then acc / T. Or +0 + h_t of the last token or the first. A
// function of the tokens alone. Where it cannot be computed, a TokenOutput says so.
struct PooledOutput {
  int64_t request = 0;
  std::vector<float> numbers;
};

// Where the engine's answers go. Called from the thread that calls Engine::step.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  // The coming step is the first that computes the request, all but `cached` tokens that the prefix
  // cache has; again after a preemption.
  virtual void on_start(int64_t /*request*/, int32_t /*cached*/) {}
  // The request lost its blocks and waits again; the steps that compute it begin with on_start.
  virtual void on_preempt(int64_t) {}
  virtual void on_token(const TokenOutput& output) = 0;
  virtual void on_prompt(const PromptOutput&) {}
  // The last word on a pooled request.
  virtual void on_pooled(const PooledOutput&) {}
};

}  // namespace invar
