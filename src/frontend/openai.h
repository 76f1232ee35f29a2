// Requests and answers in the form of OpenAI's completions and chat completions, with the names
// that vLLM adds; requests of /v1/responses and /v1/messages too (their answers: responses.h,
// anthropic.h).
#pragma once

#include <ctime>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "frontend/answer_builder.h"
#include "frontend/body_pieces.h"
#include "frontend/chat_template.h"
#include "frontend/constraint_compiler.h"
#include "frontend/request_warnings.h"
#include "frontend/thought_seal.h"
#include "frontend/thought_settings.h"
#include "frontend/tool_calls.h"

namespace invar::openai {

// The fourth is Anthropic's; the next two are Ollama's, the last two llama.cpp's.
enum class Endpoint {
  completions,
  chat,
  responses,
  messages,
  ollama_chat,
  ollama_generate,
  llama_completion,
  llama_infill
};

// The context in which requests are read.
struct Context {
  int32_t vocab = 0;
  const Tokenizer* tokenizer = nullptr;                // not null: of bad words
  std::vector<int32_t> end_tokens;                     // the model's ends of sequence
  SamplingParams defaults;                             // of what a request does not say
  const ChatTemplate* chat = nullptr;                  // null: the model has none, because
  std::string no_chat;                                 // of this sentence
  std::function<std::tm()> clock;                      // for the template
  ToolFormat tool_format = ToolFormat::none;           // of the template
  ThoughtFormat thought_format = ThoughtFormat::none;  // likewise
  const ThoughtSeal* seal = nullptr;                   // of thoughts that come back; null: none may
  ConstraintCompiler* constraints = nullptr;           // null: structured output is not compiled
  const json::Array* earlier = nullptr;  // items of the response that the request goes on from
  // False: the prompts of chats are known from elsewhere and stay empty.
  bool renders = true;
  bool shows_conversation = false;     // in Request::conversation
  int32_t max_logprobs = 1024;         // of a position: what a request may ask for
  bool clamps_length = false;          // an answer longer than the context fits; agents' always
  size_t max_prompt_bytes = SIZE_MAX;  // a longer text has more tokens than any prompt may have
  bool ignores_unknown = false;        // as servers do; else a field that is not known is refused
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;  // text, or token ids

struct Request {
  Endpoint endpoint = Endpoint::completions;
  std::string model;                   // as the request names it; empty: it does not
  std::vector<Prompt> prompts;         // one or more
  bool add_special_tokens = true;      // to prompts of text
  int32_t truncate_prompt_tokens = 0;  // the last so many of each are taken; 0: all, -1: what fits
  invar::Request base;         // of every answer, but for its prompt and choice: see `answer`
  bool has_seed = false;       // else base.params.seed is the default
  bool has_length = false;     // else base.params.max_tokens is the default: see settle_length
  bool clamps_length = false;  // a longer one than the context is one that fits
  bool prompt_only = false;    // the answer's tokens are computed and not shown
  std::vector<std::string> ignored;  // fields that are not known (Context::ignores_unknown)
  RequestWarnings warnings;          // what else is not done

  // How the answer is shown.
  Shared<std::vector<int32_t>>
      stop_token_ids;  // that it asked for: base.params has the model's too
  bool stream = false;
  bool usage_at_end = false, usage_always = false;  // of a stream
  bool token_ids = false;                           // beside the text
  bool tokens_as_ids = false;                       // in log-probabilities: "token_id:5"
  bool echo = false;                                // the prompt before the answer
  ToolFormat tools = ToolFormat::none;              // how calls are found in the answer
  std::string tool;                                 // the answer is this tool's arguments
  json::Value tool_list;                            // the tools that it may call, or null
  std::vector<std::string> custom_tools;            // of a chat: those whose calls are a text
  bool parallel_calls = true;                       // whether it may have more than one call
  // Its thoughts. settle_thoughts completes `base` from the end of the prompt.
  ThoughtFormat thought_format = ThoughtFormat::none;
  ThoughtSettings thoughts;
  bool goes_on = false;               // with the last message's words
  json::Value grammar;                // the answer's form, for ConstraintCompiler; or null
  std::string form_field;             // that asks for the form: "response_format"
  const ThoughtSeal* seal = nullptr;  // of thoughts that are shown
  // The conversation to show, or null: the prompt, the messages and tools that the chat template
  // was given, and the changes that made them (normal_form).
  json::Value conversation;
  bool summary = false, sealed = false;  // of a response: shows them as a summary, and closed
  bool background = false;               // no client waits for it
  // For /v1/responses, which repeats them.
  json::Value asked_tools, asked_choice, asked_previous;
  bool logits_hash = true;    // of each choice
  bool receipt = false;       // of each choice (make_receipt)
  bool receipt_only = false;  // nothing but receipts is shown
  // For llama.cpp's: the fields that the answer has; empty: all.
  std::vector<std::string> shown_fields;
  // Makes the receipt of answer i when it is over; set where there is a key.
  std::function<json::Value(const TextAnswer& answer, size_t i)> make_receipt;

  // n for each prompt, prompt after prompt.
  size_t answers() const { return prompts.size() * static_cast<size_t>(base.params.n); }
  const Prompt& prompt_of(size_t answer) const {
    return prompts[answer / static_cast<size_t>(base.params.n)];
  }
  // The seed of the answers to one prompt: where the request names none, equal prompts have
  // different ones.
  uint64_t seed_of(size_t prompt) const { return base.params.seed + (has_seed ? 0 : prompt); }
  bool has_several_seeds() const { return !has_seed && prompts.size() > 1; }
  // The engine's request for answer i, whose prompt is these tokens.
  invar::Request answer(size_t i, Shared<std::vector<int32_t>> prompt) const;
  // About the bytes that it and its answers keep while they are made, without the answers' tokens.
  size_t memory_bytes() const;
};

// A prompt whose size alone says that it does not fit.
class PromptTooLong : public UsageError {
 public:
  using UsageError::UsageError;
};

// Reads the body of a request. Throws UsageError with one sentence.
Request parse_request(const json::Value& body, Endpoint endpoint, const Context& context);

// The tokens of one of the request's prompts, for a context of `longest` tokens.
std::vector<int32_t> tokens_of(const Request& request, const Prompt& prompt,
                               const Tokenizer& tokenizer, int32_t longest);

// Where the request does not say how long its answers may be, or clamps what it says: the default,
// or what the longest of its prompts leaves of the context if that is less. From then on the
// request says it, so that whoever computes it again holds it to the same length.
void settle_length(Request& request, size_t longest_prompt, int32_t context);

// Reads from the end of the prompt how the thoughts of its answer are told from the text, and what
// ends them. Until then `base` has the form alone. For a request that has no thoughts nothing
// changes.
void settle_thoughts(Request& request, const std::vector<int32_t>& prompt,
                     const Tokenizer& tokenizer);

// The beginning of an answer, and of each event of a stream.
struct Head {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string system_fingerprint;
  uint64_t seed = 0;
};

// The id of an answer's call of a tool.
std::string call_id(const Head& head, size_t answer, size_t call);

// The body of the answer in pieces: the text of answer_body.
BodyPieces answer_pieces(const Request& request, std::vector<TextAnswer> answers,
                         const Tokenizer& tokenizer, const Head& head);

// The body of the answer: one choice for each of `answers`, each with its logits hash. Without a
// head it has neither id nor model.
json::Value answer_body(const Request& request, std::span<const TextAnswer> answers,
                        const Tokenizer& tokenizer, const Head* head = nullptr);

}  // namespace invar::openai
