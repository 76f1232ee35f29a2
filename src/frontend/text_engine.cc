#include "frontend/text_engine.h"

namespace invar {

std::vector<int32_t> prompt_tokens_of(const TextRequest& request,
                                      const std::variant<std::string, std::vector<int32_t>>& prompt,
                                      const Tokenizer& tokenizer, int32_t longest) {
  const std::string* text = std::get_if<std::string>(&prompt);
  std::vector<int32_t> tokens =
      text ? tokenizer.encode(*text, {.add_special_tokens = request.add_special_tokens})
           : std::get<std::vector<int32_t>>(prompt);
  if (request.prompt_tokens == 0) return tokens;
  // An answer that may fill the context needs one token at least.
  const int32_t most = request.params.max_tokens;
  const int64_t fits = longest - (most < longest ? most : 1);
  const int64_t kept = request.prompt_tokens > 0 ? request.prompt_tokens : fits;
  if (std::ssize(tokens) > kept) tokens.erase(tokens.begin(), tokens.end() - kept);
  return tokens;
}

TextEngine::TextEngine(Engine& engine, const Tokenizer& tokenizer)
    : engine_(engine), tokenizer_(tokenizer) {}

TextEngine::~TextEngine() = default;

std::vector<int32_t> TextEngine::encode(const TextRequest& request) const {
  return prompt_tokens_of(request, request.prompt, tokenizer_, engine_.max_model_len());
}

int64_t TextEngine::submit(const TextRequest& request) {
  auto state = std::make_unique<AnswerBuilder>(tokenizer_, request.stop, request.include_stop,
                                               request.skip_special);
  state->answer.prompt_tokens = encode(request);
  const int64_t id = next_id_++;
  engine_.add({.id = id,
               .prompt = state->answer.prompt_tokens,
               .params = request.params,
               .constraint = request.constraint,
               .choice = request.choice,
               .hash_logits = request.hash_logits});
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

void TextEngine::on_token(const TokenOutput& output) {
  const auto it = states_.find(output.request);
  if (it == states_.end()) return;
  AnswerBuilder& builder = *it->second;
  const std::string piece = builder.push(output);
  sink_->on_text(output.request, piece, output);
  if (builder.answer.finish == FinishReason::none) return;
  const std::unique_ptr<AnswerBuilder> finished = std::move(it->second);
  states_.erase(it);
  if (output.finish == FinishReason::none) engine_.abort(output.request);  // a stop string
  sink_->on_finished(output.request, finished->answer);
}

TextAnswer TextEngine::answer(const TextRequest& request) {
  struct One final : TextSink {
    int64_t id = 0;
    TextAnswer answer;
    bool finished = false;
    void on_text(int64_t, std::string_view, const TokenOutput&) override {}
    void on_finished(int64_t request, const TextAnswer& done) override {
      if (request == id) answer = done, finished = true;
    }
  } sink;
  sink.id = submit(request);
  while (!sink.finished && step(sink)) {
  }
  return sink.answer;
}

}  // namespace invar
