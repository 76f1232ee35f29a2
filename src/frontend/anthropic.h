// Anthropic's Messages: text and calls of tools, whole or as events.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "frontend/answer_builder.h"
#include "frontend/call_reader.h"
#include "frontend/openai.h"
#include "frontend/openai_events.h"

namespace invar::anthropic {

// The body of a chat completion that asks for the same as a body of /v1/messages. Throws UsageError
// for what is not understood, such as images. Tools that a service would run and thoughts that the
// seal did not sign (null: all) are left out with a warning.
json::Value chat_body_of(const json::Value& body, const ThoughtSeal* seal,
                         openai::RequestWarnings& warnings);

// The blocks of a message, in order: thoughts, text, and calls of tools between it.
class Blocks {
 public:
  struct Block {
    std::string text;
    bool is_thought = false;       // the text is
    std::optional<ToolCall> call;  // instead of text
    json::Value input;             // of the call, an object: what is whole of its arguments
    bool ended = false;            // the call has
  };

  explicit Blocks(const openai::Request& request)
      : reader_(request.tools, request.tool, &request.tool_list) {}

  // Takes the next thought or text.
  void push(std::string_view thought, std::string_view piece);
  void finish(bool is_cut);
  const std::vector<Block>& all() const { return blocks_; }

 private:
  void add(const std::vector<AnswerPiece>& pieces);

  ToolCallReader reader_;
  std::vector<Block> blocks_;
};

// The whole message.
json::Value message_body(const openai::Request& request, const TextAnswer& answer,
                         const openai::Head& head);

// The message as events, a delta for each token that shows text.
class MessageWriter final : public openai::StreamWriter {
 public:
  MessageWriter(openai::Head head, const openai::Request& request, int64_t prompt_tokens,
                const Tokenizer& tokenizer);

  void push(size_t, const TokenOutput& output, std::string& out) override;
  void set_cached(size_t, int64_t tokens) override { builder_.answer.cached = tokens; }
  bool is_over(size_t) const override { return ended_; }
  bool ended() const override { return ended_; }
  void fail(const Failure& failure, std::string& out) override;

 private:
  void show(bool is_over, std::string& out);
  void show_block(const Blocks::Block& block, int64_t index, std::string& out);
  void end_block(const Blocks::Block& block, int64_t index, std::string& out);
  void end(std::string& out);
  void event(const char* type, json::Value body, std::string& out);

  openai::Head head_;
  const openai::Request& request_;
  AnswerBuilder builder_;
  Blocks blocks_;
  size_t next_ = 0;    // the first block that is not shown to its end
  bool open_ = false;  // it has begun
  size_t shown_ = 0;   // bytes of its text
  bool begun_ = false, ended_ = false;
};

// {"type": "error", ...} with the type that goes with an HTTP status.
json::Value error_body(int status, const std::string& message);

}  // namespace invar::anthropic
