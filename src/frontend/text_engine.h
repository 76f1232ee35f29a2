// Text in, text out: an engine with a tokenizer. It never sees a tensor.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "frontend/answer_builder.h"
#include "frontend/stop_strings.h"
#include "tokenizer/tokenizer.h"

namespace invar {

struct TextRequest {
  std::variant<std::string, std::vector<int32_t>> prompt;  // text, or token ids
  bool add_special_tokens = true;
  SamplingParams params;
  StopSet stop;
  bool include_stop = false;
  bool skip_special = true;   // special tokens give no text
  int32_t prompt_tokens = 0;  // the last so many of the prompt's are taken; 0: all, -1: what fits
  std::shared_ptr<Constraint> constraint;  // null: the answer may be any text
  int32_t choice = 0;
  bool hash_logits = true;
};

// The tokens of `prompt`, as `request` asks, for a context of `longest` tokens.
std::vector<int32_t> prompt_tokens_of(const TextRequest& request,
                                      const std::variant<std::string, std::vector<int32_t>>& prompt,
                                      const Tokenizer& tokenizer, int32_t longest);

class TextSink {
 public:
  virtual ~TextSink() = default;
  // New text of a request, complete characters only; may be empty.
  virtual void on_text(int64_t request, std::string_view piece, const TokenOutput& token) = 0;
  virtual void on_finished(int64_t request, const TextAnswer& answer) = 0;
};

class TextEngine final : private OutputSink {
 public:
  TextEngine(Engine& engine, const Tokenizer& tokenizer);
  ~TextEngine() override;

  // Throws UsageError for a request that can never be answered. Returns its id.
  int64_t submit(const TextRequest& request);
  // The request's prompt as tokens.
  std::vector<int32_t> encode(const TextRequest& request) const;
  void abort(int64_t id);
  // One step of the engine; false when nothing is left to do.
  bool step(TextSink& sink);
  // Answers one request alone and returns it.
  TextAnswer answer(const TextRequest& request);

  Engine& engine() { return engine_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  void on_token(const TokenOutput& output) override;
  void on_prompt(const PromptOutput& output) override;

  Engine& engine_;
  const Tokenizer& tokenizer_;
  std::unordered_map<int64_t, std::unique_ptr<AnswerBuilder>> states_;
  int64_t next_id_ = 1;
  TextSink* sink_ = nullptr;  // during step
};

}  // namespace invar
