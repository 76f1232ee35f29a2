// render and derender: a request of text as tokens to generate from, and tokens that were generated
// as the answer in text. So text is made in one place and tokens in another (vLLM's names).
#include <algorithm>
#include <ctime>

#include "api.h"
#include "base/ends.h"
#include "base/error.h"
#include "errors.h"
#include "frontend/answer_builder.h"
#include "frontend/openai_sampling.h"
#include "trainer_bodies.h"

namespace invar::server {

namespace {

json::Value sampling_of(const json::Value& body, bool is_chat) {
  json::Value sampling = json::Object{};
  for (const auto& [name, value] : body.as_object())
    if (openai::is_sampling_field(name) && !value.is_null()) sampling.set(name, value);
  if (const json::Value* most = body.find("max_completion_tokens"); most && !most->is_null())
    sampling.set("max_tokens", *most);
  if (!is_chat || !sampling.find("logprobs")) return sampling;
  // A chat says whether, and how many beside.
  const bool wants = *sampling.find("logprobs") == json::Value(true);
  const json::Value* top = body.find("top_logprobs");
  sampling.set("logprobs", !wants ? json::Value() : top && !top->is_null() ? *top : json::Value(0));
  return sampling;
}

const json::Value& member(const json::Value& of, const char* name) {
  const json::Value* found = of.is_object() ? of.find(name) : nullptr;
  if (!found || found->is_null()) fail_usage("expected {} in the body, found none", name);
  return *found;
}

const json::Array& list(const json::Value& of, const char* name) {
  const json::Value& found = member(of, name);
  if (!found.is_array()) fail_usage("expected {} as a list, found {}", name, found.type_name());
  return found.as_array();
}

FinishReason finish_of(const json::Value& choice) {
  const json::Value* reason = choice.find("finish_reason");
  if (reason && *reason == json::Value("length")) return FinishReason::length;
  if (reason && *reason == json::Value("abort")) return FinishReason::aborted;
  return FinishReason::stop;
}

}  // namespace

json::Value Admission::rendered(json::Value shown, const json::Value& body,
                                const std::vector<int32_t>& ids) const {
  json::Array tokens;
  for (const int32_t id : ids) tokens.emplace_back(static_cast<int64_t>(id));
  shown.set("request_id", random_id("gen_"));
  shown.set("token_ids", std::move(tokens));
  shown.set("features", nullptr);
  const bool is_chat = body.find("messages") != nullptr;
  json::Value sampling = sampling_of(body, is_chat);
  if (is_chat && !body.find("max_tokens")) sampling.set("max_tokens", nullptr);
  shown.set("sampling_params", std::move(sampling));
  for (const char* name : {"model", "stream", "stream_options", "cache_salt", "priority"})
    if (const json::Value* found = body.find(name); found && !found->is_null())
      shown.set(name, *found);
  return shown;
}

json::Value Admission::render_prompts(const json::Value& body,
                                      const openai::Request& request) const {
  json::Array all;
  for (const openai::Prompt& prompt : request.prompts)
    all.push_back(rendered(json::Object{}, body, encode(request, prompt)));
  return all;
}

namespace {

// {"token_id", "logprob"}, or a token that is called "token_id:5".
int32_t id_of(const json::Value& entry, int32_t vocab) {
  constexpr std::string_view kMark = "token_id:";
  const json::Value *id = entry.find("token_id"), *token = entry.find("token");
  std::optional<int64_t> found = id ? id->to_integer() : std::nullopt;
  if (!found && token && token->is_string() && token->as_string().starts_with(kMark))
    found = json::parse(token->as_string().substr(kMark.size()), "a token's id").to_integer();
  if (!found || *found < 0 || *found >= vocab)
    fail_usage("expected tokens from 0 to {} in logprobs, found {}", vocab - 1,
               json::excerpt(entry));
  return static_cast<int32_t>(*found);
}

TokenLogprob logprob_of(const json::Value& entry, int32_t vocab) {
  const json::Value& logprob = member(entry, "logprob");
  if (!logprob.is_number())
    fail_usage("expected a logprob as a number, found {}", json::excerpt(logprob));
  return {.token = id_of(entry, vocab), .logprob = static_cast<float>(logprob.as_number())};
}

TokenLogprobs logprobs_of(const json::Value& entry, int32_t vocab) {
  TokenLogprobs one{logprob_of(entry, vocab), {}};
  if (const json::Value* top = entry.find("top_logprobs"); top && top->is_array())
    for (const json::Value& other : top->as_array()) one.top.push_back(logprob_of(other, vocab));
  return one;
}

}  // namespace

std::vector<TextAnswer> Admission::answers_in(const json::Value& response,
                                              openai::Request& request) const {
  const int32_t vocab = backend_.facts().vocab;
  std::vector<TextAnswer> answers;
  for (const json::Value& choice : list(response, "choices")) {
    AnswerBuilder builder(*model_.tokenizer, request.base);
    const json::Array& ids = list(choice, "token_ids");
    const json::Value* scores = choice.find("logprobs");
    const json::Array none;
    const json::Array& content = scores && scores->is_object() ? list(*scores, "content") : none;
    if (!content.empty() && content.size() != ids.size())
      fail_usage("expected a log-probability for each of {} tokens, found {}", ids.size(),
                 content.size());
    if (!content.empty()) request.base.params.logprobs = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto id = ids[i].to_integer();
      if (!id || *id < 0 || *id >= vocab)
        fail_usage("expected token_ids from 0 to {}, found {}", vocab - 1, json::excerpt(ids[i]));
      TokenOutput output{.token = static_cast<int32_t>(*id), .index = static_cast<int32_t>(i)};
      if (!content.empty()) output.logprobs = logprobs_of(content[i], vocab);
      if (i + 1 == ids.size() && finish_of(choice) != FinishReason::aborted)
        output.finish = finish_of(choice);
      builder.push(output);
    }
    if (builder.answer.finish == FinishReason::none) builder.answer.finish = finish_of(choice);
    answers.push_back(std::move(builder.answer));
  }
  return answers;
}

namespace {

// The caller's knowledge of the prompts: their tokens, or how many there were.
struct Known {
  Shared<std::vector<int32_t>> tokens;
  int64_t count = 0;
};

Known prompt_of(const json::Value* ids, const json::Value* count) {
  Known known;
  if (ids && ids->is_array())
    for (const json::Value& id : ids->as_array())
      if (const auto found = id.to_integer())
        known.tokens.edit().push_back(static_cast<int32_t>(*found));
  known.count = std::ssize(known.tokens.get());
  if (count && count->to_integer()) known.count = std::max<int64_t>(0, *count->to_integer());
  return known;
}

const json::Value* at(const json::Value* all, size_t i) {
  return all && all->is_array() && i < all->as_array().size() ? &all->as_array()[i] : nullptr;
}

}  // namespace

json::Value Admission::derender(const HttpRequest& http) const {
  const json::Value body = parse_body(http.body);
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  if (const json::Value* stream = body.find("stream"); stream && *stream == json::Value(true))
    fail_usage(
        "expected a whole answer, found \"stream\": true: ask /inference/v1/generate for "
        "text (output_mode text)");
  const std::string path = http.path.substr(0, http.path.rfind('/'));
  const bool is_chat = path == "/v1/chat/completions";
  const json::Value* asked = body.find(is_chat ? "chat_request" : "completion_request");
  json::Value form = asked && asked->is_object() ? *asked : json::Value(json::Object{});
  form.set(is_chat ? "messages" : "prompt", is_chat ? json::Array{} : json::Value("x"));
  form.set("stream", false);
  // The prompt is known from elsewhere.
  JournalEntry entry{.created = static_cast<int64_t>(std::time(nullptr)), .endpoint = path};
  entry.prompts.emplace_back();
  openai::Request request = read(entry, form, std::nullopt, Purpose::count);
  request.base.params.n = 1;
  request.logits_hash = request.token_ids = false;
  const Adapter adapter = adapter_of(text_of(body, {"model"}).value_or(""));
  const json::Array one = is_chat ? json::Array{member(body, "generate_response")} : json::Array{};
  const json::Array& responses = is_chat ? one : list(body, "generate_responses");
  const json::Value *ids = body.find("prompt_token_ids"), *counts = body.find("prompt_tokens");
  std::vector<TextAnswer> answers;
  int64_t prompt = 0;
  for (size_t i = 0; i < responses.size(); ++i) {
    const json::Value* own = is_chat ? ids : at(ids, i);
    if (!own || own->is_null())
      own = responses[i].is_object() ? responses[i].find("prompt_token_ids") : nullptr;
    const Known known = prompt_of(own, is_chat ? counts : at(counts, i));
    prompt += known.count;
    if (is_chat) openai::settle_thoughts(request, known.tokens.get(), *model_.tokenizer);
    for (TextAnswer& answer : answers_in(responses[i], request)) {
      answer.prompt_tokens = known.tokens;
      answers.push_back(std::move(answer));
    }
  }
  if (answers.empty()) fail_usage("expected choices to show, found none");
  const openai::Head head{.id = random_id(is_chat ? "chatcmpl-" : "cmpl-"),
                          .created = entry.created,
                          .model = adapter ? adapter->name : first_of(model_.names),
                          .system_fingerprint = fingerprint(adapter.get())};
  json::Value answer = openai::answer_body(request, answers, *model_.tokenizer, &head);
  int64_t tokens = 0;
  for (const TextAnswer& each : answers) tokens += std::ssize(each.tokens);
  answer.set("usage", json::Object{{"prompt_tokens", prompt},
                                   {"completion_tokens", tokens},
                                   {"total_tokens", prompt + tokens}});
  return answer;
}

void Server::derender(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request;
  reply_with_tokens(exchange, [this, &request] { return admission_.derender(request); });
}

}  // namespace invar::server
