// Ollama's /api/chat and /api/generate: requests, and answers as lines of JSON or as a whole.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "frontend/answer_builder.h"
#include "frontend/answer_times.h"
#include "frontend/call_reader.h"
#include "frontend/openai.h"
#include "frontend/single_writer.h"

namespace invar::ollama {

// The version of Ollama whose API this is: clients ask for it before they use what is newer.
inline constexpr const char* kVersion = "0.13.5";

// Ollama's name of a model has a tag: "m" is "m:latest".
std::string name_with_tag(std::string_view name);
std::string name_without_tag(std::string_view name);

// The body of a chat completion that asks for the same as a body of /api/chat. Throws UsageError
// for fields that are not understood, such as images. A field that is left out because no answer
// depends on it is a warning.
json::Value chat_body_of(const json::Value& body, const openai::Context& context,
                         openai::RequestWarnings& warnings);

// The same of a body of /api/generate: a chat's, or, of a raw prompt or one with a suffix, that of
// a completion.
struct Generated {
  json::Value body;
  bool is_chat = true;
};
Generated generate_body_of(const json::Value& body, const openai::Context& context,
                           openai::RequestWarnings& warnings);

// A body of /api/embed, or of /api/embeddings with its one text, as one of /v1/embeddings: how the
// runner is to compute is a warning. `truncate`, which is on unless a body says otherwise, is for
// the caller to do (cuts_texts).
json::Value embed_body_of(const json::Value& body, bool is_one, openai::RequestWarnings& warnings);
bool cuts_texts(const json::Value& body);

// Whether a body asks for no answer: with an empty prompt, or without messages, the model is only
// to be loaded.
bool only_loads(const json::Value& body, bool is_chat);
// The reply to such a body.
json::Value loaded_body(const json::Value& body, bool is_chat, int64_t now);

// "2026-11-28T22:30:00Z"
std::string time_text(int64_t seconds);

// The lines of an answer, and where calls stand that are not whole yet.
class Lines {
 public:
  explicit Lines(const openai::Request& request)
      : reader_(request.tools, request.tool, &request.tool_list) {}

  void push(std::string_view thought, std::string_view text);
  void finish(bool is_cut);
  // The text that has come since the last call of this.
  struct Line {
    std::string thought, text;
    json::Array calls;
    bool empty() const { return thought.empty() && text.empty() && calls.empty(); }
  };
  Line take() { return std::exchange(line_, {}); }

 private:
  void add(const std::vector<AnswerPiece>& pieces);

  ToolCallReader reader_;
  Line line_;
  ToolCall call_;      // that has begun
  int64_t calls_ = 0;  // that were whole
};

json::Value answer_body(const openai::Request& request, const TextAnswer& answer,
                        const Tokenizer& tokenizer, const openai::Head& head,
                        const AnswerTimes& times);

// The answer as lines, one for each token that shows something.
class LineWriter final : public openai::SingleWriter {
 public:
  LineWriter(openai::Head head, const openai::Request& request, int64_t prompt_tokens,
             const Tokenizer& tokenizer)
      : SingleWriter(std::move(head), request, prompt_tokens, tokenizer), lines_(request) {}

 private:
  void show(const TokenOutput&, const std::string& piece, std::string& out) override;
  void show_error(const Failure& failure, std::string& out) override;

  Lines lines_;
};

// {"error": sentence}
json::Value error_body(const std::string& message);

}  // namespace invar::ollama
