// The public API (include/invar/invar.h) over an instance: answers.
#include "base/error.h"
#include "engine/pooled_vector.h"
#include "engine/specification.h"
#include "frontend/answer_receipt.h"
#include "session/open.h"
#include "session/session_impl.h"
#include "session/session_request.h"
#include "session/verify.h"

namespace invar {

namespace {

// One of the answers that a call of generate waits for.
struct Awaited {
  size_t prompt = 0;
  Receipt head;
  Generation so_far{.finish_reason = "cancelled"};  // what it is where the callback ends it
};

ReceiptKey key_of(const std::string& file) {
  return file.empty() ? ReceiptKey() : open_receipt_key(file);
}

}  // namespace

Session::Impl::Impl(const SessionOptions& asked)
    : options(instance_options(asked)),
      tokenizer(open_tokenizer(options.model)),
      receipt_key(key_of(asked.receipt_key)),
      constraints(tokenizer),
      running(std::make_unique<Running>(options, nullptr, tokenizer)) {
  const Model& model = running->model();
  logprobs_mode = logprobs_mode_of(asked.logprobs_mode);
  identity = model.identity();
  is_normalized = model.config().pooling.is_normalized;
  vocabulary = static_cast<int>(model.spec().vocab);
  hidden = static_cast<int>(model.spec().hidden);
  layers = model.spec().layers;
  context = running->engine().max_model_len();
}

Session::Impl::Awake Session::Impl::awake() {
  std::shared_lock lock(sleeping);
  if (asleep.any())
    fail_usage("expected a session that is awake, found one that sleeps: wake_up first");
  return {std::move(lock), *running};
}

Session::Impl::Awake Session::Impl::with_weights() {
  std::shared_lock lock(sleeping);
  if (asleep.weights != Sleep::Weights::stay)
    fail_usage(
        "expected weights in memory, found a session that sleeps: wake_up with the tag weights "
        "first");
  return {std::move(lock), *running};
}

Request Session::Impl::request(Running& at, std::vector<int32_t> prompt,
                               const GenerateOptions& asked) {
  Request request = request_of(asked, tokenizer);
  request.prompt = std::move(prompt);
  if (asked.logprobs_mode.empty()) request.params.logprobs_mode = logprobs_mode;
  if (asked.max_tokens <= 0)
    request.params.max_tokens = length_that_fits(context, request.prompt.size(), context);
  add_end_tokens(request.params, at.model(), tokenizer);
  if (!asked.lora.empty()) {
    const std::lock_guard lock(compiling);
    request.adapter = adapters.open(asked.lora, at.model().spec(), at.model().adapter_user());
  }
  if (asked.structured_outputs.empty()) return request;
  const json::Value form = json::parse(asked.structured_outputs, "structured_outputs");
  check_form(form);
  const std::lock_guard lock(compiling);
  request.constraint = constraints.compile(form);
  return request;
}

void Session::Impl::expect_receipts() const {
  if (identity.find("/control/") != identity.npos)
    fail_usage("the baseline's answers cannot be computed again: it gives no receipts");
}

ReceiptModel Session::Impl::answering_model(Running& at) {
  const std::lock_guard lock(compiling);
  if (!receipt_model) {
    receipt_model = receipt_texts(at.model().options());
    receipt_model->arithmetic = identity;
    receipt_model->specification = to_hex(specification_digest(at.model().config()));
    receipt_model->weights = digest_of_weights(at);
    receipt_model->defaults = defaults_digest({});
  }
  return *receipt_model;
}

Receipt Session::Impl::receipt_head(Running& at, Request& request) {
  expect_receipts();
  check_params(request, vocabulary);
  Receipt head = receipt_of(request);
  head.id = "session";
  head.created = std::time(nullptr);
  head.name = at.model().options().model;
  head.context = context;
  head.model = answering_model(at);
  if (request.adapter) head.model.adapter = to_hex(request.adapter->digest);
  return head;
}

Generation Session::Impl::finished(const GenerateOptions& asked, const Receipt& head,
                                   TextAnswer answer) {
  std::string receipt;
  if (asked.receipt) receipt = json::dump(signed_receipt(head, answer, receipt_key));
  Generation generation = shown(std::move(answer));
  generation.receipt = std::move(receipt);
  return generation;
}

std::vector<Generation> Session::Impl::generate(std::vector<Query> queries, const OnToken& on_token,
                                                const OnStep& on_step) {
  const Awake at = awake();
  EngineLoop::Mailbox mailbox(at->loop);
  std::vector<Generation> answers(queries.size());
  std::unordered_map<int64_t, Awaited> awaited;
  for (size_t i = 0; i < queries.size(); ++i) {
    Awaited one{.prompt = i};
    one.so_far.prompt_tokens = queries[i].prompt;
    Request asked = request(at.running, std::move(queries[i].prompt), queries[i].options);
    if (queries[i].options.receipt) one.head = receipt_head(at.running, asked);
    awaited.emplace(at->loop.add(std::move(asked), mailbox), std::move(one));
  }
  for (size_t tokens = 0; !awaited.empty();) {
    for (AnswerEvent& event : at->loop.next(mailbox)) {
      const auto found = awaited.find(event.id);
      if (found == awaited.end()) continue;  // it was cancelled
      Awaited& one = found->second;
      if (event.answer && event.answer->finish == FinishReason::failed)
        fail("the answer failed: {}", event.answer->error);
      const bool is_enough = event.token && on_token && !on_token(shown(event, one.prompt));
      if (event.token) add_token(one.so_far, event), ++tokens;
      if (is_enough) at->loop.cancel(event.id, mailbox);
      if (!is_enough && !event.answer) continue;
      answers[one.prompt] =
          event.answer ? finished(queries[one.prompt].options, one.head, std::move(*event.answer))
                       : std::move(one.so_far);
      awaited.erase(found);
    }
    if (on_step) on_step(answers.size() - awaited.size(), tokens);
  }
  return answers;
}

std::vector<AnswerEvent> Session::Impl::last_events(std::vector<Request> requests,
                                                    const OnStep& on_step) {
  const auto told = [&](size_t answered) {
    if (on_step) on_step(answered, 0);
  };
  return awake()->loop.last_events(std::move(requests), told);
}

Session::Session(const SessionOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

std::string Session::identity() const {
  return impl_->identity;
}
int Session::vocabulary_size() const {
  return impl_->vocabulary;
}
int Session::hidden_size() const {
  return impl_->hidden;
}
int Session::layers() const {
  return impl_->layers;
}
int Session::max_model_len() const {
  return impl_->context;
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
  std::vector<Query> queries;
  for (const std::string& prompt : prompts) queries.push_back({tokenize(prompt), options});
  return impl_->generate(std::move(queries), on_token, {});
}
std::vector<Generation> Session::generate(std::span<const std::vector<int32_t>> prompts,
                                          const GenerateOptions& options, const OnToken& on_token) {
  std::vector<Query> queries;
  for (const auto& prompt : prompts) queries.push_back({prompt, options});
  return impl_->generate(std::move(queries), on_token, {});
}
std::vector<Generation> Session::generate(std::span<const Query> queries, const OnStep& on_step) {
  return impl_->generate({queries.begin(), queries.end()}, {}, on_step);
}
Generation Session::chat(std::span<const Message> messages, const GenerateOptions& options,
                         const OnToken& on_token) {
  return impl_->generate_one(impl_->tokens_of(messages), options, on_token);
}

std::vector<float> Session::score(std::span<const int32_t> tokens) {
  Request request{.prompt = std::vector(tokens.begin(), tokens.end())};
  request.params.max_tokens = 1;
  request.params.temperature = 0;
  request.params.prompt_logprobs = 0;
  const TextAnswer answer = *impl_->last_events({std::move(request)}, {}).front().answer;
  if (answer.finish == FinishReason::failed) fail("the score failed: {}", answer.error);
  std::vector<float> logprobs;
  for (const TokenLogprobs& l : answer.prompt_logprobs) logprobs.push_back(l.logprob);
  return logprobs;
}

std::vector<float> Session::embed(std::string_view text) {
  const std::vector<std::vector<int32_t>> prompts{tokenize(text)};
  return std::move(embed(prompts).front());
}
std::vector<std::vector<float>> Session::embed(std::span<const std::vector<int32_t>> prompts,
                                               const OnStep& on_step) {
  std::vector<Request> requests;
  for (const auto& prompt : prompts) requests.push_back({.prompt = prompt, .pooled = true});
  std::vector<std::vector<float>> vectors;
  for (AnswerEvent& event : impl_->last_events(std::move(requests), on_step)) {
    if (event.answer) fail("the embedding failed: {}", event.answer->error);
    vectors.push_back(shown_vector(std::move(event.vector), {}, impl_->is_normalized));
  }
  return vectors;
}

}  // namespace invar
