#include "frontend/text_engine.h"

namespace invar {

TextEngine::TextEngine(Engine& engine, const Tokenizer& tokenizer)
    : engine_(engine), tokenizer_(tokenizer) {}

TextEngine::~TextEngine() = default;

int64_t TextEngine::submit(Request request) {
  auto state = std::make_unique<AnswerBuilder>(tokenizer_, request);
  state->answer.prompt_tokens = request.prompt;
  const int64_t id = request.id = next_id_++;
  engine_.add(std::move(request));
  states_.emplace(id, std::move(state));
  return id;
}

void TextEngine::abort(int64_t id) {
  engine_.abort(id);
  states_.erase(id);
}

bool TextEngine::step(TextSink& sink) {
  sink_ = &sink;
  return engine_.step(*this);
}

void TextEngine::on_prompt(const PromptOutput& output) {
  const auto it = states_.find(output.request);
  if (it != states_.end()) it->second->answer.prompt_logprobs.push_back(output.logprobs);
}

void TextEngine::on_pooled(const PooledOutput& output) {
  if (states_.erase(output.request)) sink_->on_vector(output.request, output.numbers);
}

void TextEngine::on_token(const TokenOutput& output) {
  const auto it = states_.find(output.request);
  if (it == states_.end()) return;
  AnswerBuilder& builder = *it->second;
  const std::string piece = builder.push(output);
  if (!builder.new_thought().empty()) sink_->on_thought(output.request, builder.new_thought());
  sink_->on_text(output.request, piece, output);
  if (builder.answer.finish == FinishReason::none) return;
  const std::unique_ptr<AnswerBuilder> finished = std::move(it->second);
  states_.erase(it);
  if (output.finish == FinishReason::none) engine_.abort(output.request);  // a stop string
  sink_->on_finished(output.request, finished->answer);
}

TextAnswer TextEngine::answer(Request request) {
  struct One final : TextSink {
    int64_t id = 0;
    TextAnswer answer;
    bool finished = false;
    void on_text(int64_t, std::string_view, const TokenOutput&) override {}
    void on_finished(int64_t request, const TextAnswer& done) override {
      if (request == id) answer = done, finished = true;
    }
  } sink;
  sink.id = submit(std::move(request));
  while (!sink.finished && step(sink)) {
  }
  return sink.answer;
}

}  // namespace invar
