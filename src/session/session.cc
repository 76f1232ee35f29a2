// The public API (include/invar/invar.h) over the engine.
#include <invar/invar.h>

#include <ctime>

#include "base/error.h"
#include "engine/engine.h"
#include "frontend/chat_template.h"
#include "frontend/text_engine.h"
#include "session/open.h"

namespace invar {

namespace {

constexpr int kFitContext = -1;

ModelOptions model_options(const SessionOptions& o) {
  return {.model = o.model,
          .arithmetic = o.arithmetic,
          .weights = o.weights,
          .device = o.device,
          .instruction_set = o.instruction_set,
          .threads = o.threads,
          .ranks = o.tensor_parallel_size};
}

EngineOptions engine_options(const SessionOptions& o) {
  EngineOptions options;
  options.fit_context = o.max_model_len == kFitContext;
  options.scheduler.max_model_len = options.fit_context ? 0 : o.max_model_len;
  options.kv_bytes = static_cast<int64_t>(o.kv_cache_gib * (1 << 30));
  options.prompt_logprobs = options.embeddings = true;
  return options;
}

SamplingParams sampling_params(const GenerateOptions& o, int64_t prompt_size, const Model& model,
                               int max_model_len) {
  SamplingParams p;
  p.max_tokens =
      o.max_tokens > 0 ? o.max_tokens : static_cast<int32_t>(max_model_len - prompt_size);
  p.temperature = o.temperature;
  p.top_k = o.top_k;
  p.top_p = o.top_p;
  p.min_p = o.min_p;
  p.repetition_penalty = o.repetition_penalty;
  p.presence_penalty = o.presence_penalty;
  p.frequency_penalty = o.frequency_penalty;
  p.seed = o.seed;
  p.ignore_eos = o.ignore_eos;
  if (o.logprobs) p.logprobs = 0;
  add_end_tokens(p, model);
  return p;
}

// Hands an answer's tokens to the caller's function and remembers when it has had enough.
class Follower final : public TextSink {
 public:
  explicit Follower(const OnToken& on_token) : on_token_(on_token) {}

  void on_text(int64_t, std::string_view piece, const TokenOutput& token) override {
    tokens_.push_back(token);
    if (on_token_ && !cancelled)
      cancelled = !on_token_(
          {.id = token.token,
           .index = token.index,
           .text = piece,
           .logprob = token.logprobs ? std::optional(token.logprobs->logprob) : std::nullopt});
    text_ += piece;
  }
  void on_finished(int64_t, const TextAnswer& done) override {
    answer_ = done;
    finished = true;
  }

  Generation result(std::vector<int32_t> prompt) && {
    if (finished && answer_.finish == FinishReason::failed)
      fail("the answer failed: {}", answer_.error);
    Generation g{.text = finished ? std::move(answer_.text) : std::move(text_),
                 .prompt_tokens = std::move(prompt),
                 .finish_reason = finished ? name_of(answer_.finish) : "cancelled"};
    for (const TokenOutput& token : tokens_) {
      g.tokens.push_back(token.token);
      if (token.logprobs) g.logprobs.push_back(token.logprobs->logprob);
      g.logits_hash = to_hex(token.logits_hash);
    }
    return g;
  }

  bool finished = false, cancelled = false;

 private:
  const OnToken& on_token_;
  std::vector<TokenOutput> tokens_;
  std::string text_;
  TextAnswer answer_;
};

// Waits for the one vector that was asked for.
struct Vector final : OutputSink {
  std::vector<float> numbers;
  std::string error;
  bool finished = false;
  void on_token(const TokenOutput& output) override {
    error = output.error ? output.error : "it gave a token";
    finished = true;
  }
  void on_pooled(const PooledOutput& output) override {
    numbers = output.numbers;
    finished = true;
  }
};

std::tm now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm local{};
  localtime_r(&seconds, &local);
  return local;
}

}  // namespace

struct Session::Impl {
  explicit Impl(const SessionOptions& options)
      : model(model_options(options)),
        tokenizer(open_tokenizer(model.options())),
        engine(model, engine_options(options)),
        text(engine, tokenizer) {}

  Generation generate(std::vector<int32_t> prompt, const GenerateOptions& options,
                      const OnToken& on_token) {
    Follower follower(on_token);
    const int64_t id = text.submit(
        {.prompt = prompt,
         .params = sampling_params(options, std::ssize(prompt), model, engine.max_model_len()),
         .stop = options.stop});
    try {
      while (!follower.finished && !follower.cancelled && text.step(follower)) {
      }
    } catch (...) {  // of the caller's function
      text.abort(id);
      throw;
    }
    if (!follower.finished) text.abort(id);
    return std::move(follower).result(std::move(prompt));
  }

  Model model;
  Tokenizer tokenizer;
  Engine engine;
  TextEngine text;
  std::optional<ChatTemplate> chat;  // opened when a conversation comes
};

Session::Session(const SessionOptions& options) {
  if (options.model.empty()) fail_usage("expected a model directory in SessionOptions, found none");
  if (options.max_model_len < kFitContext)
    fail_usage("expected max_model_len of -1 or more, found {}", options.max_model_len);
  if (!(options.kv_cache_gib >= 0 && options.kv_cache_gib < 1e6))
    fail_usage("expected kv_cache_gib of 0 or more, found {}", options.kv_cache_gib);
  impl_ = std::make_unique<Impl>(options);
}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

std::string Session::identity() const {
  return impl_->model.identity();
}
int Session::vocabulary_size() const {
  return impl_->model.spec().vocab;
}
int Session::max_model_len() const {
  return impl_->engine.max_model_len();
}

Generation Session::generate(std::string_view prompt, const GenerateOptions& options,
                             const OnToken& on_token) {
  return impl_->generate(tokenize(prompt), options, on_token);
}
Generation Session::generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                             const OnToken& on_token) {
  return impl_->generate({prompt.begin(), prompt.end()}, options, on_token);
}

Generation Session::chat(std::span<const Message> messages, const GenerateOptions& options,
                         const OnToken& on_token) {
  json::Array list;
  for (const Message& message : messages) {
    json::Value v;
    v.set("role", message.role);
    v.set("content", message.content);
    list.push_back(std::move(v));
  }
  if (!impl_->chat) impl_->chat = open_chat_template(impl_->model.options());
  const std::string prompt = impl_->chat->render({.messages = std::move(list)}, now);
  return impl_->generate(impl_->tokenizer.encode(prompt, {.add_special_tokens = false}), options,
                         on_token);
}

std::vector<float> Session::score(std::span<const int32_t> tokens) {
  Request request{.prompt = std::vector(tokens.begin(), tokens.end())};
  request.params.max_tokens = 1;
  request.params.temperature = 0;
  request.params.prompt_logprobs = 0;
  const TextAnswer answer = impl_->text.answer(std::move(request));
  if (answer.finish == FinishReason::failed) fail("the score failed: {}", answer.error);
  std::vector<float> logprobs;
  for (const TokenLogprobs& l : answer.prompt_logprobs) logprobs.push_back(l.logprob);
  return logprobs;
}

std::vector<float> Session::embed(std::string_view text) {
  constexpr int64_t kId = -1;  // the text engine counts from 1
  Vector vector;
  impl_->engine.add({.id = kId, .prompt = tokenize(text), .pooled = true});
  while (!vector.finished && impl_->engine.step(vector)) {
  }
  if (!vector.error.empty()) fail("the embedding failed: {}", vector.error);
  return std::move(vector.numbers);
}

std::vector<int32_t> Session::tokenize(std::string_view text) const {
  return impl_->tokenizer.encode(text, {.add_special_tokens = true});
}
std::string Session::detokenize(std::span<const int32_t> tokens) const {
  return impl_->tokenizer.decode(tokens, {.skip_special = false});
}

}  // namespace invar
