// OpenAI's Responses: text and calls of tools, whole or as events.
#pragma once

#include <string>
#include <vector>

#include "frontend/answer_builder.h"
#include "frontend/call_reader.h"
#include "frontend/custom_tools.h"
#include "frontend/openai.h"
#include "frontend/openai_events.h"

namespace invar::openai {

// The body of a chat completion that asks for the same as a body of /v1/responses. Throws
// UsageError for what is not understood, such as images. Tools and items of tools that a service
// would run, and thoughts that the seal did not close, are left out with a warning. The items of
// `earlier` stand before its input.
json::Value chat_body_of(const json::Value& body, const json::Array* earlier,
                         const ThoughtSeal* seal, RequestWarnings& warnings);
// How a response shows thoughts, and whether somebody waits for it.
void read_reasoning(const json::Value& body, Request& request);

// How many turns of a user these items have, and what is left of them without the first ones:
// system messages stay.
size_t turns_of(const json::Array& items);
json::Array without_turns(const json::Array& items, size_t turns);

// The items of a response's input, as a list.
json::Array input_items(const json::Value& body);

// The output of a response, in order: thoughts, messages, and calls of tools. Each ends before the
// next one begins.
class ResponseItems {
 public:
  // Takes the next thought, or text or a part of a call.
  void push_thought(std::string_view thought) { push(Kind::thought, thought); }
  void push(const AnswerPiece& piece);
  // Begins a message, if the last item is none.
  void begin_message() { push(Kind::message, ""); }

  size_t size() const { return items_.size(); }
  bool is_call(size_t i) const { return items_[i].kind == Kind::call; }
  bool is_thought(size_t i) const { return items_[i].kind == Kind::thought; }
  const ToolCall& call(size_t i) const { return items_[i].call; }
  const std::string& text(size_t i) const {
    return items_[i].call.arguments;
  }                               // of what is no call
  size_t number(size_t i) const;  // among the items of its kind
  std::string id(const Head& head, size_t i) const;

 private:
  enum class Kind { message, thought, call };
  struct Item {
    Kind kind = Kind::message;
    ToolCall call;  // else `arguments` are the text
  };
  // Adds to the last item, where it is of this kind, or to a new one.
  void push(Kind kind, std::string_view text);

  std::vector<Item> items_;
};

// The whole answer; its "output" are the items that a later request goes on from.
json::Value response_body(const Request& request, const TextAnswer& answer, const Head& head);

// The body of a response without an answer, because of this: queued, in_progress or cancelled.
json::Value unanswered_body(const Request& request, const Head& head, const char* status);
// The body of one whose answer failed.
json::Value failed_body(const Request& request, const Head& head, const Failure& failure);

// The answer as events with sequence numbers from 0, a delta for each token that shows text.
class ResponseWriter final : public StreamWriter {
 public:
  ResponseWriter(Head head, const Request& request, int64_t prompt_tokens,
                 const Tokenizer& tokenizer);

  void push(size_t, const TokenOutput& output, std::string& out) override;
  void set_cached(size_t, int64_t tokens) override { builder_.answer.cached = tokens; }
  bool is_over(size_t) const override { return ended_; }
  bool ended() const override { return ended_; }
  void fail(const Failure& failure, std::string& out) override;
  const TextAnswer* answer() const override { return &builder_.answer; }

 private:
  void begin(std::string& out);
  void begin_item(size_t i, std::string& out);
  void show(const AnswerPiece& piece, std::string& out);
  void show_text(const char* type, const std::string& delta, std::string& out);
  void show_arguments(size_t i, const std::string& delta, std::string& out);
  void end_item(std::string& out, bool is_last = false);
  void end_call(size_t i, std::string& out);
  void end_text(size_t i, std::string& out);
  void end(std::string& out);
  void event(const char* type, size_t i, json::Value body, std::string& out);
  void event(const char* type, json::Value body, std::string& out);

  Head head_;
  const Request& request_;
  AnswerBuilder builder_;
  ToolCallReader reader_;
  ResponseItems items_;
  CustomInput input_;  // of the last call
  int64_t sequence_ = 0;
  bool open_ = false;  // the last item has not ended
  bool ended_ = false;
};

}  // namespace invar::openai
