// OpenAI's Responses: text in, text out, whole or as events.
#pragma once

#include <string>

#include "frontend/answer_builder.h"
#include "frontend/openai.h"
#include "frontend/openai_events.h"

namespace invar::openai {

// The body of a chat completion that asks for the same as a body of /v1/responses. Throws
// UsageError for what is not understood: tools, earlier responses, parts that are no text.
json::Value chat_body_of(const json::Value& body);

// The whole answer.
json::Value response_body(const Request& request, const TextAnswer& answer, const Head& head);

// The answer as events with sequence numbers from 0, a delta for each token that shows text.
class ResponseWriter final : public StreamWriter {
 public:
  ResponseWriter(Head head, const Request& request, int64_t prompt_tokens,
                 const Tokenizer& tokenizer);

  void push(size_t, const TokenOutput& output, std::string& out) override;
  bool is_over(size_t) const override { return ended_; }
  bool ended() const override { return ended_; }
  void fail(const std::string& message, const char* code, std::string& out) override;

 private:
  void begin(std::string& out);
  void end(std::string& out);
  void event(const char* type, json::Value body, std::string& out);

  Head head_;
  const Request& request_;
  AnswerBuilder builder_;
  int64_t sequence_ = 0;
  bool ended_ = false;
};

}  // namespace invar::openai
