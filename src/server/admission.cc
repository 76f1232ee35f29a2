#include "admission.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "base/ends.h"
#include "base/error.h"
#include "base/json_values.h"
#include "errors.h"
#include "frontend/body_fields.h"
#include "frontend/kept_request.h"
#include "frontend/ollama.h"
#include "frontend/request_limits.h"

namespace invar::server {

namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxValues = 1 << 20;  // of a body; a prompt has one for each of its ids
constexpr size_t kMaxNames = 1 << 17;   // of all its objects
// Its bytes and what its values take; one of long texts takes about twice its bytes.
constexpr size_t kMaxMemory = 48 << 20;

openai::Endpoint endpoint_of(const std::string& path) {
  if (path == "/v1/responses") return openai::Endpoint::responses;
  if (path == "/v1/messages") return openai::Endpoint::messages;
  if (path == "/api/chat") return openai::Endpoint::ollama_chat;
  if (path == "/api/generate") return openai::Endpoint::ollama_generate;
  if (path == "/completion") return openai::Endpoint::llama_completion;
  if (path == "/infill") return openai::Endpoint::llama_infill;
  return path == "/v1/chat/completions" ? openai::Endpoint::chat : openai::Endpoint::completions;
}

const char* id_prefix(openai::Endpoint endpoint) {
  switch (endpoint) {
    case openai::Endpoint::completions:
    case openai::Endpoint::ollama_generate:
    case openai::Endpoint::llama_completion:
    case openai::Endpoint::llama_infill:
      return "cmpl-";
    case openai::Endpoint::chat:
    case openai::Endpoint::ollama_chat:
      return "chatcmpl-";
    case openai::Endpoint::responses:
      return "resp_";
    case openai::Endpoint::messages:
      return "msg_";
  }
  return "";
}

uint64_t random_bits(int bits) {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) >> (64 - bits);
}

}  // namespace

bool names(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == pattern.npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  pattern.remove_prefix(star + 1);
  for (name.remove_prefix(star); !names(pattern, name); name.remove_prefix(1))
    if (name.empty()) return false;
  return true;
}

bool names_without_tag(std::string_view pattern, std::string_view name) {
  const std::string bare = ollama::name_without_tag(name);
  return names(pattern, name) || names(pattern, bare) || names(pattern, bare + ":latest");
}

std::string idempotency_key_of(const HttpRequest& http) {
  const std::string* key = http.header("idempotency-key");
  if (key && key->size() > openai::kMaxIdempotencyKeyBytes)
    fail_usage("expected an Idempotency-Key of at most {} bytes, found {}",
               openai::kMaxIdempotencyKeyBytes, key->size());
  return key ? *key : std::string();
}

const char* prompt_field(openai::Endpoint endpoint) {
  switch (endpoint) {
    case openai::Endpoint::responses:
      return "input";
    case openai::Endpoint::chat:
    case openai::Endpoint::messages:
    case openai::Endpoint::ollama_chat:
      return "messages";
    default:
      return "prompt";
  }
}

json::Value parse_body(const std::string& body) {
  if (json::has_more_values(body, kMaxValues))
    fail_usage("expected at most {} values in the body of the request, found more", kMaxValues);
  if (json::has_more_names(body, kMaxNames))
    fail_usage("expected at most {} names of members in the body of the request, found more",
               kMaxNames);
  const size_t bytes = body.size() + json::parsed_bytes(body);
  const size_t most = std::max(kMaxMemory, body.size() / 2 * 5);
  if (bytes > most)
    fail_usage("expected a body whose bytes and values take at most {} bytes, found one of {}",
               most, bytes);
  return json::parse(body, "the body of the request", {.max_depth = kMaxDepth});
}

std::string random_id(const char* prefix) {
  return fmt::format("{}{:016x}{:08x}", prefix, random_bits(64), random_bits(32));
}

ReceiptModel Admission::answering_model(const RequestAdapter* adapter) const {
  const BackendFacts facts = backend_.facts();
  ReceiptModel model = model_.texts;
  model.arithmetic = facts.identity;
  model.specification = to_hex(facts.specification);
  model.weights = to_hex(facts.weights);
  if (adapter) model.adapter = to_hex(adapter->digest);
  return model;
}

openai::Request Admission::read(const JournalEntry& entry, const json::Value& body,
                                const std::optional<std::string>& earlier, Purpose purpose) const {
  const BackendFacts facts = backend_.facts();
  openai::Context context{
      .vocab = facts.vocab,
      .tokenizer = model_.tokenizer,
      .end_tokens = facts.end_tokens,
      .defaults = model_.defaults,
      .chat = model_.chat,
      .no_chat = model_.no_chat,
      .clock = [&] { return utc_time(entry.created); },
      .tool_format = model_.tool_format,
      .thought_format = model_.thought_format,
      .seal = model_.seal,
      .renders = entry.prompts.empty(),
      .shows_conversation = purpose == Purpose::show,
      .max_logprobs = model_.max_logprobs,
      .clamps_length = model_.clamps_length,
      .max_prompt_bytes =
          purpose == Purpose::answer ? model_.tokenizer->most_bytes(facts.max_model_len) : SIZE_MAX,
      .ignores_unknown = true};
  json::Value items;
  if (earlier) {
    items = json::parse(*earlier, "a conversation");
    context.earlier = &items.as_array();
  }
  const openai::Endpoint endpoint = endpoint_of(entry.endpoint);
  // A chat's answer may fill the context: settle_length takes the prompt off.
  if (endpoint != openai::Endpoint::completions) context.defaults.max_tokens = facts.max_model_len;
  try {
    return openai::parse_request(body, endpoint, context);
  } catch (const openai::PromptTooLong& error) {
    throw ApiError{400, error.what(), "context_length_exceeded", prompt_field(endpoint)};
  }
}

void take_slots(HeldSlots& slots, const openai::Request& request) {
  const AdmissionSlots& all = slots.of();
  const size_t answers = request.answers();
  if (answers > all.most())
    throw ApiError{400,
                   fmt::format("expected at most {} answers (--max-queued-requests), found a "
                               "request for {}: prompts {}, n {}",
                               all.most(), answers, request.prompts.size(), request.base.params.n),
                   "", "n"};
  if (answers > all.most_of_owner())
    throw ApiError{400,
                   fmt::format("expected at most {} answers of one key (half of "
                               "--max-queued-requests), found a request for {}",
                               all.most_of_owner(), answers),
                   "", "n"};
  if (!slots.grow_to(answers))
    throw ApiError{429,
                   fmt::format("the server makes at most {} answers at the same time, {} are being "
                               "made or wait and {} more are asked for",
                               all.most(), all.taken(), answers),
                   "queue_full"};
}

namespace {

// A whole answer has all log-probabilities before the first is sent.
size_t logprob_bytes(const openai::Request& request, const BackendFacts& facts) {
  const SamplingParams& p = request.base.params;
  if (!p.logprobs || request.stream) return 0;
  constexpr size_t kToken = 96, kEntry = 20;  // with what vectors have in reserve
  const auto tokens = static_cast<size_t>(std::clamp(p.max_tokens, 0, facts.max_model_len));
  return request.answers() * tokens *
         (kToken + kEntry * static_cast<size_t>(std::max(*p.logprobs, 0)));
}

// The bytes that the engine keeps for the experts that tokens go through, and the answer again.
size_t routed_bytes(const openai::Request& request, const BackendFacts& facts) {
  if (!request.base.routed_experts) return 0;
  size_t longest = 0;  // a token is a byte of text at least
  for (const openai::Prompt& prompt : request.prompts)
    longest = std::max(longest, std::visit([](const auto& one) { return one.size(); }, prompt));
  const size_t tokens = std::min(longest + static_cast<size_t>(request.base.params.max_tokens),
                                 static_cast<size_t>(facts.max_model_len));
  const size_t row = static_cast<size_t>(facts.routed_columns) * 2 * sizeof(int16_t);
  return request.answers() * tokens * row;
}

}  // namespace

void hold_memory(HeldSlots& slots, size_t bytes) {
  if (bytes > slots.of().most_bytes_of_owner())
    throw ApiError{400,
                   fmt::format("expected a request that holds memory of at most {} bytes "
                               "(--max-queued-mib, shared by keys), found one for {}",
                               slots.of().most_bytes_of_owner(), bytes),
                   "request_too_large"};
  if (!slots.hold(bytes))
    throw ApiError{429,
                   fmt::format("the requests that are answered or wait hold memory up to {} bytes "
                               "(--max-queued-mib), and {} more are asked for",
                               slots.of().most_bytes(), bytes),
                   "queue_full"};
}

void Admission::expect_head() const {
  if (!model_.numbers.has_head)
    fail_usage("the model has no head that predicts tokens: it makes {}, and no answers",
               model_.numbers.relevance == Relevance::cross ? "scores" : "embeddings");
}

Admitted Admission::admit(const HttpRequest& http, const std::string& owner,
                          const json::Value& body, const std::optional<std::string>& earlier,
                          std::shared_ptr<HeldSlots> slots) const {
  expect_head();
  const BackendFacts facts = backend_.facts();
  const openai::Endpoint endpoint = endpoint_of(http.path);
  JournalEntry entry{.id = random_id(id_prefix(endpoint)),
                     .created = static_cast<int64_t>(std::time(nullptr)),
                     .owner = owner,
                     .endpoint = http.path,
                     .arithmetic = facts.identity,
                     .model = {}};
  const json::Value* truncation =
      endpoint == openai::Endpoint::responses ? body.find("truncation") : nullptr;
  openai::Request request = truncation && *truncation == json::Value("auto")
                                ? read_fitting(entry, body, earlier)
                                : read(entry, body, earlier);
  entry.request = json::dump(openai::kept_body(body, request));
  entry.body = sha256(std::as_bytes(std::span(http.body)));
  const Adapter adapter = adapter_of(request.model);
  entry.model = model_digest(answering_model(adapter.get()));
  // Numbers that every client's JSON reader keeps, one for each prompt from this on.
  if (!request.has_seed) request.base.params.seed = random_bits(52);
  check_params(request.base, facts.vocab);
  take_slots(*slots, request);
  hold_memory(*slots, request.memory_bytes() + routed_bytes(request, facts) +
                          logprob_bytes(request, facts));
  entry.idempotency_key = idempotency_key_of(http);
  size_t longest = 0;
  for (const openai::Prompt& prompt : request.prompts) {
    entry.prompts.push_back(encode(request, prompt));
    longest = std::max(longest, last_of(entry.prompts).size());
  }
  openai::settle_length(request, longest, facts.max_model_len);
  entry.params = request.base.params;
  Admitted admitted = complete(std::move(entry), std::move(request), adapter);
  admitted.slots = std::move(slots);
  return admitted;
}

std::vector<int32_t> Admission::encode(const openai::Request& request,
                                       const openai::Prompt& prompt) const {
  return openai::tokens_of(request, prompt, *model_.tokenizer, backend_.facts().max_model_len);
}

bool Admission::is_models_name(const std::string& name) const {
  const auto is_it = [&](const std::string& served) { return names_without_tag(served, name); };
  return name.empty() || std::ranges::any_of(model_.names, is_it);
}

void Admission::check_model(const std::string& name) const {
  if (is_models_name(name)) return;
  if (model_.adapters && model_.adapters->find(name))
    throw ApiError{404,
                   fmt::format("expected the model's name, since it answers this alone, found the "
                               "adapter {}",
                               json::quoted(name)),
                   "model_not_found", "model"};
  throw ApiError{404, fmt::format("the model {} does not exist", json::quoted(name)),
                 "model_not_found", "model"};
}

Admission::Adapter Admission::adapter_of(const std::string& name) const {
  Adapter adapter = model_.adapters ? model_.adapters->find(name) : nullptr;
  if (!adapter) check_model(name);
  return adapter;
}

void Admission::expect_same_model(const JournalEntry& entry, const ReceiptModel& model) {
  const Digest now = model_digest(model);
  if (entry.arithmetic != model.arithmetic || entry.model != now)
    throw ApiError{
        409, fmt::format("the answer was made with {} and the model {}, the server "
                         "now has {} and {}: it would be another answer",
                         entry.arithmetic, to_hex(entry.model), model.arithmetic, to_hex(now))};
}

Admitted Admission::readmit(const JournalEntry& entry) const {
  const json::Value body = parse_body(entry.request);
  const json::Value* name = body.find("model");
  const Adapter adapter = name && name->is_string() && model_.adapters
                              ? model_.adapters->find(name->as_string())
                              : nullptr;
  const ReceiptModel model = answering_model(adapter.get());
  if (!adapter && entry.model != model_digest(model) && name && name->is_string() &&
      !is_models_name(name->as_string()))
    throw ApiError{409, fmt::format("the answer was made with the adapter {}, which is not served",
                                    json::quoted(name->as_string()))};
  expect_same_model(entry, model);
  openai::Request request = read(entry, body);
  request.base.params = entry.params;
  return complete(entry, std::move(request), adapter);
}

Admitted Admission::complete(JournalEntry entry, openai::Request request,
                             const Adapter& adapter) const {
  // Answers that repeat prompts show the rest of those that were cut, and those that are known.
  if (request.truncate_prompt_tokens != 0 || !request.echo) {
    request.prompts.clear();
    for (const auto& prompt : entry.prompts) request.prompts.emplace_back(prompt.get());
  }
  openai::Head head{.id = entry.id,
                    .created = entry.created,
                    .model = request.model.empty() ? first_of(model_.names) : request.model,
                    .system_fingerprint = fingerprint(adapter.get()),
                    .seed = entry.params.seed};
  if (!entry.prompts.empty())
    openai::settle_thoughts(request, first_of(entry.prompts), *model_.tokenizer);
  std::vector<Request> requests = make_requests(entry, request, adapter);
  Admitted admitted{.entry = std::move(entry),
                    .request = std::move(request),
                    .head = std::move(head),
                    .requests = std::move(requests),
                    .slots = nullptr};
  if (admitted.request.receipt) prepare_receipts(admitted);
  return admitted;
}

std::vector<Request> Admission::make_requests(const JournalEntry& entry,
                                              const openai::Request& request,
                                              const Adapter& adapter) const {
  const BackendFacts facts = backend_.facts();
  if (request.base.params.prompt_logprobs && !facts.prompt_logprobs)
    fail_usage("prompt log-probabilities were switched off when the server started");
  if (request.base.routed_experts && facts.routed_columns == 0)
    throw FieldError(
        "return_routed_experts",
        "expected a model with experts beside return_routed_experts, found one without");
  std::vector<Request> requests;
  // No salt of a client's is that of another key: an owner is of one length.
  Shared<std::string> salt = request.base.cache_salt;
  if (!model_.shares_prefixes) salt = entry.owner + salt.get();
  const auto n = static_cast<size_t>(request.base.params.n);
  for (size_t i = 0; i < request.answers(); ++i) {
    const Shared<std::vector<int32_t>>& prompt = entry.prompts[i / n];
    const auto size = static_cast<int64_t>(prompt.size());
    if (size == 0)
      throw FieldError(prompt_field(request.endpoint),
                       "expected a prompt of at least one token, found none");
    if (size >= facts.max_model_len)
      throw ApiError{400,
                     fmt::format("the prompt has {} tokens; at most {} fit with one token of "
                                 "answer into the context of {}",
                                 size, facts.max_model_len - 1, facts.max_model_len),
                     "context_length_exceeded", prompt_field(request.endpoint)};
    if (entry.params.max_tokens > facts.max_model_len - size)
      throw ApiError{
          400,
          fmt::format("the prompt has {} tokens and max_tokens is {}: together they "
                      "exceed the context of {}; at most {} tokens of answer fit",
                      size, entry.params.max_tokens, facts.max_model_len,
                      facts.max_model_len - size),
          "context_length_exceeded",
          request.endpoint == openai::Endpoint::responses ? "max_output_tokens" : "max_tokens"};
    requests.push_back(request.answer(i, prompt));
    last_of(requests).cache_salt = salt;
    last_of(requests).adapter = adapter;
  }
  return requests;
}

}  // namespace invar::server
