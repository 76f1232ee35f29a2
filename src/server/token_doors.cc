// Doors of what asks for tokens or texts of tokens and for no answer: /tokenize, /detokenize,
// render, count_tokens. A text may be larger than a prompt, and not without end.
#include <ctime>

#include "api.h"
#include "base/ends.h"
#include "base/error.h"
#include "errors.h"

namespace invar::server {

size_t Admission::most_counted_bytes() const {
  constexpr size_t kTimes = 4, kOfToken = 16, kLeast = 256 << 10;
  return std::max(kLeast, kTimes * kOfToken * static_cast<size_t>(backend_.facts().max_model_len));
}

std::vector<int32_t> Admission::encode_counted(const openai::Request& request) const {
  const openai::Prompt& prompt = first_of(request.prompts);
  const auto* text = std::get_if<std::string>(&prompt);
  if (text && text->size() > most_counted_bytes())
    throw FieldError(prompt_field(request.endpoint),
                     fmt::format("expected a text of at most {} bytes (four times the context, at "
                                 "16 bytes a token), found {}",
                                 most_counted_bytes(), text->size()));
  return encode(request, prompt);
}

TokenizedText Admission::tokenize(const HttpRequest& http) const {
  const json::Value body = parse_body(http.body);
  const bool chat = body.find("messages") != nullptr;
  const openai::Request request =
      read({.created = static_cast<int64_t>(std::time(nullptr)),
            .endpoint = chat ? "/v1/chat/completions" : "/v1/completions"},
           body, std::nullopt, Purpose::count);
  const json::Value* texts = body.find("return_token_strs");
  if (texts && !texts->is_null() && !texts->is_bool())
    fail_usage("expected return_token_strs as true or false, found {}", texts->type_name());
  return {encode_counted(request), texts && *texts == json::Value(true)};
}

json::Value Admission::render(const std::string& path, json::Value body,
                              const std::optional<std::string>& earlier) const {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  if (!body.find("max_tokens")) body.set("max_tokens", 1);  // a message needs one for its answer
  openai::Request request =
      read({.created = static_cast<int64_t>(std::time(nullptr)), .endpoint = path}, body, earlier,
           Purpose::show);
  adapter_of(request.model);
  if (path == "/v1/completions") return render_prompts(body, request);
  json::Value shown = std::move(request.conversation);
  const auto ids = encode_counted(request);
  shown.set("count", std::ssize(ids));
  const std::vector<std::string>& warnings = request.warnings.all();
  shown.set("warnings", json::Array(warnings.begin(), warnings.end()));
  return rendered(std::move(shown), body, ids);
}

std::string Admission::detokenize(const HttpRequest& http) const {
  const json::Value body = parse_body(http.body);
  const json::Value* tokens = body.find("tokens");
  if (!tokens) fail_usage("expected \"tokens\" in the body of the request");
  std::vector<int32_t> ids;
  if (!tokens->is_array()) fail_usage("expected tokens as a list, found {}", tokens->type_name());
  const int32_t vocab = backend_.facts().vocab;
  const size_t most = 4 * static_cast<size_t>(backend_.facts().max_model_len);
  if (tokens->as_array().size() > most)
    fail_usage("expected at most {} tokens (four times the context), found {}", most,
               tokens->as_array().size());
  for (const json::Value& token : tokens->as_array()) {
    const auto found = token.to_integer();
    if (!found || *found < 0 || *found >= vocab)
      fail_usage("expected tokens from 0 to {}, found {}", vocab - 1, json::excerpt(token));
    ids.push_back(static_cast<int32_t>(*found));
  }
  return model_.tokenizer->decode(ids, {.skip_special = false});
}

int64_t Admission::count_tokens(const std::string& endpoint, json::Value body,
                                const std::optional<std::string>& earlier) const {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  if (endpoint == "/v1/messages" && !body.find("max_tokens"))
    body.set("max_tokens", 1);  // needed only for an answer
  const openai::Request request =
      read({.created = static_cast<int64_t>(std::time(nullptr)), .endpoint = endpoint}, body,
           earlier, Purpose::count);
  adapter_of(request.model);
  return std::ssize(encode_counted(request));
}

// POST /v1/messages/count_tokens
void Server::count_tokens(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request;
  reply_with_tokens(exchange, [this, &request]() -> json::Value {
    return json::Object{
        {"input_tokens", admission_.count_tokens("/v1/messages", parse_body(request.body))}};
  });
}

void Server::reply_with_tokens(std::shared_ptr<Exchange> exchange,
                               std::function<json::Value()> make) {
  constexpr size_t kCost = 32;  // bytes of memory for a byte of the body, measured by attack.py
  const HttpRequest& request = exchange->request;
  const auto slots = std::make_shared<HeldSlots>(slots_, options_.keys.owner(request));
  hold_memory(*slots, kCost * request.body.size());
  exchange->slots = slots;
  reply_later(reading(request), exchange, std::move(make));
}

void Server::tokenize(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request;
  reply_with_tokens(exchange, [this, &request] {
    const TokenizedText text = admission_.tokenize(request);
    json::Array ids, texts;
    for (const int32_t id : text.ids) {
      ids.emplace_back(static_cast<int64_t>(id));
      if (text.with_texts) texts.emplace_back(model_.tokenizer->token_text(id));
    }
    json::Value body =
        json::Object{{"count", std::ssize(ids)},
                     {"max_model_len", static_cast<int64_t>(backend_.facts().max_model_len)},
                     {"tokens", std::move(ids)}};
    body.set("token_strs", text.with_texts ? json::Value(std::move(texts)) : json::Value());
    return body;
  });
}

// POST /v1/chat/completions/render and its like.
void Server::render(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request;
  reply_with_tokens(exchange, [this, &request] {
    const std::string path = request.path.substr(0, request.path.rfind('/'));
    const std::string owner = options_.keys.owner(request);
    json::Value body = with_named_items(owner, path, parse_body(request.body));
    const auto earlier = earlier_items(owner, path, body);
    return admission_.render(path, std::move(body), earlier);
  });
}

void Server::detokenize(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request;
  reply_with_tokens(exchange, [this, &request]() -> json::Value {
    return json::Object{{"prompt", admission_.detokenize(request)}};
  });
}

}  // namespace invar::server
