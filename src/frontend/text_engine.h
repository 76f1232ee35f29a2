// Text in, text out: an engine with a tokenizer. It never sees a tensor.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "frontend/answer_builder.h"
#include "sampling/stop_strings.h"
#include "tokenizer/tokenizer.h"

namespace invar {

class TextSink {
 public:
  virtual ~TextSink() = default;
  // New text of a request, complete characters only; may be empty.
  virtual void on_text(int64_t request, std::string_view piece, const TokenOutput& token) = 0;
  // New text of a request's thought, before the call of on_text for the same token.
  virtual void on_thought(int64_t, std::string_view) {}
  virtual void on_finished(int64_t request, const TextAnswer& answer) = 0;
  // The last word on a request that asked for a vector (Request::pooled).
  virtual void on_vector(int64_t, const std::vector<float>&) {}
};

class TextEngine final : private OutputSink {
 public:
  TextEngine(Engine& engine, const Tokenizer& tokenizer);
  ~TextEngine() override;

  // Throws UsageError for a request that can never be answered. Returns its id.
  int64_t submit(Request request);
  void abort(int64_t id);
  // One step of the engine; false when nothing is left to do.
  bool step(TextSink& sink);
  // Answers one request alone and returns it.
  TextAnswer answer(Request request);

  Engine& engine() { return engine_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  void on_token(const TokenOutput& output) override;
  void on_prompt(const PromptOutput& output) override;
  void on_pooled(const PooledOutput& output) override;

  Engine& engine_;
  const Tokenizer& tokenizer_;
  std::unordered_map<int64_t, std::unique_ptr<AnswerBuilder>> states_;
  int64_t next_id_ = 1;
  TextSink* sink_ = nullptr;  // during step
};

}  // namespace invar
