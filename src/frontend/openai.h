// Requests and answers in the form of OpenAI's completions and chat completions, with the names
// that vLLM adds.
#pragma once

#include <ctime>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "frontend/chat_template.h"
#include "frontend/constraint_compiler.h"
#include "frontend/text_engine.h"

namespace invar::openai {

enum class Endpoint { completions, chat };

// What requests are read against.
struct Context {
  int32_t vocab = 0;
  std::vector<int32_t> end_tokens;            // the model's ends of sequence
  SamplingParams defaults;                    // of what a request does not say
  const ChatTemplate* chat = nullptr;         // null: the model has none, because
  std::string no_chat;                        // of this sentence
  std::function<std::tm()> clock;             // for the template
  ConstraintCompiler* constraints = nullptr;  // null: constrained answers are refused
};

struct Request {
  Endpoint endpoint = Endpoint::completions;
  TextRequest text;  // of the first of text.params.n answers; the others differ in `choice`
};

// Reads the body of a request. A field that is not known is refused, since it could mean to change
// the answer. Throws UsageError with one sentence.
Request parse_request(const json::Value& body, Endpoint endpoint, const Context& context);

// The body of the answer: one choice for each of `answers`, each with its logits hash.
json::Value answer_body(const Request& request, std::span<const TextAnswer> answers,
                        const Tokenizer& tokenizer);

}  // namespace invar::openai
