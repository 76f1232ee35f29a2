// The public API (include/invar/invar.h) over an instance.
#include <invar/invar.h>

#include <fmt/ranges.h>

#include <mutex>

#include "base/error.h"
#include "engine/model_description.h"
#include "frontend/chat_template.h"
#include "frontend/constraint_compiler.h"
#include "session/engine_loop.h"
#include "session/instance.h"
#include "session/open.h"
#include "session/updated_weights.h"

namespace invar {

namespace {

constexpr int kFitContext = -1;

InstanceOptions instance_options(const SessionOptions& o) {
  if (o.model.empty()) fail_usage("expected a model directory in SessionOptions, found none");
  if (o.max_model_len < kFitContext)
    fail_usage("expected max_model_len of -1 or more, found {}", o.max_model_len);
  if (!(o.kv_cache_gib >= 0 && o.kv_cache_gib < 1e6))
    fail_usage("expected kv_cache_gib of 0 or more, found {}", o.kv_cache_gib);
  InstanceOptions options{.model = {.model = o.model,
                                    .load_format = o.load_format,
                                    .arithmetic = o.arithmetic,
                                    .weights = o.weights,
                                    .device = o.device,
                                    .instruction_set = o.instruction_set,
                                    .threads = o.threads,
                                    .ranks = o.tensor_parallel_size}};
  EngineOptions& engine = options.engine;
  engine.fit_context = o.max_model_len == kFitContext;
  engine.scheduler.max_model_len = engine.fit_context ? 0 : o.max_model_len;
  engine.scheduler.policy = o.scheduling_policy;
  engine.scheduler.max_num_seqs = o.max_num_seqs;
  engine.scheduler.max_num_batched_tokens = o.max_num_batched_tokens;
  engine.prefix_caching = o.enable_prefix_caching;
  engine.kv_bytes = static_cast<int64_t>(o.kv_cache_gib * (1 << 30));
  engine.prompt_logprobs = engine.embeddings = true;
  options.speculation = with_short_flags(o.speculative_config, {}, {}, 0);
  options.speculation.model = found_drafter(options.speculation.model);
  return options;
}

// All but the prompt, the ends of sequence, the constraint and a length that was not said.
Request request_of(const GenerateOptions& o) {
  Request request{.stop = o.stop, .cache_salt = o.cache_salt, .priority = o.priority};
  SamplingParams& p = request.params;
  p.max_tokens = o.max_tokens;
  p.min_tokens = o.min_tokens;
  p.temperature = o.temperature;
  p.top_k = o.top_k;
  p.top_p = o.top_p;
  p.min_p = o.min_p;
  p.repetition_penalty = o.repetition_penalty;
  p.presence_penalty = o.presence_penalty;
  p.frequency_penalty = o.frequency_penalty;
  p.logit_bias = o.logit_bias;
  p.allowed_token_ids = o.allowed_token_ids;
  p.seed = o.seed;
  p.stop_token_ids = o.stop_token_ids;
  p.ignore_eos = o.ignore_eos;
  if (o.logprobs) p.logprobs = o.top_logprobs;
  if (o.prompt_logprobs) p.prompt_logprobs = o.top_logprobs;
  return request;
}

GeneratedToken shown(const AnswerEvent& event, size_t prompt = 0) {
  const TokenOutput& token = *event.token;
  return {.id = token.token,
          .index = token.index,
          .text = event.text,
          .logprob = token.logprobs ? std::optional(token.logprobs->logprob) : std::nullopt,
          .prompt = prompt};
}

void add_logprobs(const TokenLogprobs& from, std::vector<float>& logprobs,
                  std::vector<std::vector<Logprob>>& top) {
  logprobs.push_back(from.logprob);
  std::vector<Logprob>& most = top.emplace_back();
  for (const TokenLogprob& one : from.top) most.push_back({one.token, one.logprob, one.rank});
}

Generation shown(TextAnswer answer) {
  Generation g{.text = std::move(answer.text),
               .prompt_tokens = std::move(answer.prompt_tokens),
               .tokens = std::move(answer.tokens),
               .finish_reason = name_of(answer.finish),
               .logits_hash = to_hex(answer.logits_hash)};
  for (const TokenLogprobs& one : answer.logprobs) add_logprobs(one, g.logprobs, g.top_logprobs);
  for (const TokenLogprobs& one : answer.prompt_logprobs)
    add_logprobs(one, g.prompt_logprobs, g.top_prompt_logprobs);
  return g;
}

// One of the answers that a call of generate waits for.
struct Awaited {
  size_t prompt = 0;
  Generation so_far{.finish_reason = "cancelled"};  // what it is where the callback ends it

  void add(const AnswerEvent& event) {
    so_far.text += event.text;
    so_far.tokens.push_back(event.token->token);
    so_far.logits_hash = to_hex(event.token->logits_hash);
    if (const auto& logprobs = event.token->logprobs)
      add_logprobs(*logprobs, so_far.logprobs, so_far.top_logprobs);
  }
};

DType dtype_of(const Tensor& tensor) {
  if (tensor.dtype == "BF16") return DType::bf16;
  if (tensor.dtype == "F16") return DType::f16;
  if (tensor.dtype == "F32") return DType::f32;
  fail_usage("expected the type of the tensor {} as BF16, F16 or F32, found {}",
             json::quoted(tensor.name), json::quoted(tensor.dtype));
}

// Throws unless it can stand for the tensor of that name that was loaded.
UpdatedTensor copy_of(const Tensor& tensor, const TensorSource& loaded) {
  const std::string name = "update_weights: " + json::quoted(tensor.name);
  if (!loaded.has(tensor.name)) fail_usage("{}: expected a tensor of the model", name);
  const TensorInfo &expected = loaded.info(tensor.name),
                   found{.dtype = dtype_of(tensor), .shape = tensor.shape};
  if (found != expected)
    fail_usage("{}: expected {} of shape [{}] as in the checkpoint, found {} of shape [{}]", name,
               name_of(expected.dtype), fmt::join(expected.shape, ", "), name_of(found.dtype),
               fmt::join(found.shape, ", "));
  if (!tensor.data) fail_usage("{}: expected its elements, found none", name);
  const auto* bytes = static_cast<const std::byte*>(tensor.data);
  return {.info = found, .bytes = {bytes, bytes + found.elements() * size_of(found.dtype)}};
}

}  // namespace

struct Session::Impl {
  explicit Impl(const SessionOptions& options)
      : instance(instance_options(options)),
        tokenizer(open_tokenizer(instance.model())),
        constraints(tokenizer),
        loop(instance.engine(), tokenizer),
        driven(loop) {}

  Request request(std::vector<int32_t> prompt, const GenerateOptions& options) {
    Request request = request_of(options);
    request.prompt = std::move(prompt);
    if (options.max_tokens <= 0)
      request.params.max_tokens =
          length_that_fits(instance.engine().max_model_len(), request.prompt.size(),
                           instance.engine().max_model_len());
    add_end_tokens(request.params, instance.model());
    if (options.structured_outputs.empty()) return request;
    const std::lock_guard lock(compiling);
    request.constraint =
        constraints.compile(json::parse(options.structured_outputs, "structured_outputs"));
    return request;
  }

  std::vector<Generation> generate(std::vector<std::vector<int32_t>> prompts,
                                   const GenerateOptions& options, const OnToken& on_token);
  Generation generate_one(std::vector<int32_t> prompt, const GenerateOptions& options,
                          const OnToken& on_token) {
    return std::move(generate({std::move(prompt)}, options, on_token).front());
  }
  // The one event that is waited for.
  AnswerEvent last_event(Request request);
  std::vector<int32_t> tokens_of(std::span<const Message> messages);
  void write(const UpdatedTensors& tensors);

  Instance instance;
  Tokenizer tokenizer;
  std::mutex compiling;  // guards what follows
  ConstraintCompiler constraints;
  std::optional<ChatTemplate> chat;  // opened when a conversation comes
  EngineLoop loop;
  EngineLoop::Mailbox driven;  // of requests that were added
  UpdatedTensors updated;      // all so far; between steps
};

std::vector<Generation> Session::Impl::generate(std::vector<std::vector<int32_t>> prompts,
                                                const GenerateOptions& options,
                                                const OnToken& on_token) {
  EngineLoop::Mailbox mailbox(loop);
  std::vector<Generation> answers(prompts.size());
  std::unordered_map<int64_t, Awaited> awaited;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Awaited one{.prompt = i};
    one.so_far.prompt_tokens = prompts[i];
    awaited.emplace(loop.add(request(std::move(prompts[i]), options), mailbox), std::move(one));
  }
  while (!awaited.empty()) {
    for (AnswerEvent& event : loop.next(mailbox)) {
      const auto found = awaited.find(event.id);
      if (found == awaited.end()) continue;  // it was cancelled
      Awaited& one = found->second;
      if (event.answer && event.answer->finish == FinishReason::failed)
        fail("the answer failed: {}", event.answer->error);
      const bool is_enough = event.token && on_token && !on_token(shown(event, one.prompt));
      if (event.token) one.add(event);
      if (is_enough) loop.cancel(event.id, mailbox);
      if (!is_enough && !event.answer) continue;
      answers[one.prompt] = event.answer ? shown(std::move(*event.answer)) : std::move(one.so_far);
      awaited.erase(found);
    }
  }
  return answers;
}

AnswerEvent Session::Impl::last_event(Request request) {
  EngineLoop::Mailbox mailbox(loop);
  loop.add(std::move(request), mailbox);
  while (true)
    for (AnswerEvent& event : loop.next(mailbox))
      if (!event.token) return std::move(event);
}

std::vector<int32_t> Session::Impl::tokens_of(std::span<const Message> messages) {
  json::Array list;
  for (const Message& message : messages)
    list.push_back(json::Object{{"role", message.role}, {"content", message.content}});
  const std::lock_guard lock(compiling);
  if (!chat) chat = open_chat_template(instance.model());
  return tokenizer.encode(chat->render({.messages = std::move(list)}, local_time),
                          {.add_special_tokens = false});
}

Session::Session(const SessionOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

std::string Session::identity() const {
  return impl_->instance.model().identity();
}
int Session::vocabulary_size() const {
  return impl_->instance.model().spec().vocab;
}
int Session::max_model_len() const {
  return impl_->instance.engine().max_model_len();
}

Generation Session::generate(std::string_view prompt, const GenerateOptions& options,
                             const OnToken& on_token) {
  return impl_->generate_one(tokenize(prompt), options, on_token);
}
Generation Session::generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                             const OnToken& on_token) {
  return impl_->generate_one({prompt.begin(), prompt.end()}, options, on_token);
}
std::vector<Generation> Session::generate(std::span<const std::string> prompts,
                                          const GenerateOptions& options, const OnToken& on_token) {
  std::vector<std::vector<int32_t>> tokens;
  for (const std::string& prompt : prompts) tokens.push_back(tokenize(prompt));
  return impl_->generate(std::move(tokens), options, on_token);
}
std::vector<Generation> Session::generate(std::span<const std::vector<int32_t>> prompts,
                                          const GenerateOptions& options, const OnToken& on_token) {
  return impl_->generate({prompts.begin(), prompts.end()}, options, on_token);
}
Generation Session::chat(std::span<const Message> messages, const GenerateOptions& options,
                         const OnToken& on_token) {
  return impl_->generate_one(impl_->tokens_of(messages), options, on_token);
}

int64_t Session::add(std::string_view prompt, const GenerateOptions& options) {
  return impl_->loop.add(impl_->request(tokenize(prompt), options), impl_->driven);
}
int64_t Session::add(std::span<const int32_t> prompt, const GenerateOptions& options) {
  return impl_->loop.add(impl_->request({prompt.begin(), prompt.end()}, options), impl_->driven);
}
void Session::cancel(int64_t id) {
  impl_->loop.cancel(id, impl_->driven);
}
bool Session::has_work() const {
  return impl_->loop.has_live(impl_->driven);
}
std::vector<Update> Session::step() {
  std::vector<Update> updates;
  for (AnswerEvent& event : impl_->loop.next(impl_->driven)) {
    Update& update = updates.emplace_back(Update{.id = event.id});
    if (event.token)
      update.token = shown(event);
    else if (event.answer->finish == FinishReason::failed)
      update.error = event.answer->error;
    else
      update.generation = shown(std::move(*event.answer));
  }
  return updates;
}

std::vector<float> Session::score(std::span<const int32_t> tokens) {
  Request request{.prompt = std::vector(tokens.begin(), tokens.end())};
  request.params.max_tokens = 1;
  request.params.temperature = 0;
  request.params.prompt_logprobs = 0;
  const TextAnswer answer = *impl_->last_event(std::move(request)).answer;
  if (answer.finish == FinishReason::failed) fail("the score failed: {}", answer.error);
  std::vector<float> logprobs;
  for (const TokenLogprobs& l : answer.prompt_logprobs) logprobs.push_back(l.logprob);
  return logprobs;
}

std::vector<float> Session::embed(std::string_view text) {
  AnswerEvent event = impl_->last_event({.prompt = tokenize(text), .pooled = true});
  if (event.answer) fail("the embedding failed: {}", event.answer->error);
  return std::move(event.vector);
}

void Session::Impl::write(const UpdatedTensors& tensors) {
  const auto loaded = open_weights(instance.model().options());
  instance.engine().take_weights(UpdatedWeights(*loaded, tensors));
}

void Session::update_weights(std::span<const Tensor> tensors) {
  impl_->loop.between_steps([&](Engine& engine) {
    engine.expect_no_work();
    const auto loaded = open_weights(engine.model().options());
    UpdatedTensors all = impl_->updated;
    for (const Tensor& tensor : tensors)
      all.insert_or_assign(tensor.name, copy_of(tensor, *loaded));
    try {
      impl_->write(all);
    } catch (...) {  // some of it may have been written
      impl_->write(impl_->updated);
      throw;
    }
    impl_->updated = std::move(all);
  });
}

std::vector<int32_t> Session::tokenize(std::string_view text) const {
  return impl_->tokenizer.encode(text, {.add_special_tokens = true});
}
std::vector<int32_t> Session::tokenize(std::span<const Message> messages) const {
  return impl_->tokens_of(messages);
}
std::string Session::detokenize(std::span<const int32_t> tokens) const {
  return impl_->tokenizer.decode(tokens, {.skip_special = false});
}

}  // namespace invar
