#include "frontend/openai.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace invar::openai {

namespace {

constexpr std::string_view kCommonFields[] = {"model",
                                              "max_tokens",
                                              "min_tokens",
                                              "ignore_eos",
                                              "temperature",
                                              "top_k",
                                              "top_p",
                                              "min_p",
                                              "repetition_penalty",
                                              "presence_penalty",
                                              "frequency_penalty",
                                              "seed",
                                              "stop",
                                              "stop_token_ids",
                                              "include_stop_str_in_output",
                                              "logit_bias",
                                              "n",
                                              "logprobs",
                                              "prompt_logprobs",
                                              "response_format",
                                              "structured_outputs",
                                              "guided_regex",
                                              "guided_choice",
                                              "guided_json",
                                              "user"};
constexpr std::string_view kCompletionFields[] = {"prompt"};
constexpr std::string_view kChatFields[] = {"messages",
                                            "tools",
                                            "max_completion_tokens",
                                            "top_logprobs",
                                            "chat_template_kwargs",
                                            "add_generation_prompt"};

template <size_t N>
bool among(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

int64_t integer(const json::Value& value, std::string_view name, int64_t low, int64_t high) {
  if (!value.is_integer())
    fail_usage("expected {} as an integer, found {}", name, value.type_name());
  const int64_t found = value.as_integer();
  if (found < low || found > high)
    fail_usage("expected {} from {} to {}, found {}", name, low, high, found);
  return found;
}

// Reads the fields of one body.
class Reader {
 public:
  Reader(const json::Value& body, const Context& context) : body_(body), context_(context) {}

  Request read(Endpoint endpoint) {
    if (!body_.is_object()) fail_usage("expected an object, found {}", body_.type_name());
    const bool chat = endpoint == Endpoint::chat;
    for (const auto& [key, value] : body_.as_object())
      if (!among(key, kCommonFields) &&
          !(chat ? among(key, kChatFields) : among(key, kCompletionFields)))
        fail_usage("the field {} of \"body\" is not supported", json::quoted(key));
    Request request{.endpoint = endpoint, .text = {.params = context_.defaults}};
    chat ? read_messages(request.text) : read_prompt(request.text);
    read_lengths(request.text.params);
    read_sampling(request.text.params);
    read_stops(request.text);
    chat ? read_chat_logprobs(request.text.params) : read_logprobs(request.text.params);
    read_constraint(request.text);
    return request;
  }

 private:
  const json::Value* find(const char* name) const {
    const json::Value* value = body_.find(name);
    return value && value->is_null() ? nullptr : value;  // null: not given
  }
  void read_integer(const char* name, int32_t& value, int64_t low) const {
    if (const json::Value* v = find(name))
      value = static_cast<int32_t>(integer(*v, name, low, INT32_MAX));
  }
  void read_number(const char* name, double& value) const {
    const json::Value* v = find(name);
    if (v && !v->is_number()) fail_usage("expected a number {}, found {}", name, v->type_name());
    if (v) value = v->as_number();
  }
  bool read_flag(const char* name, bool value) const {
    const json::Value* v = find(name);
    if (v && !v->is_bool())
      fail_usage("expected {} as true or false, found {}", name, v->type_name());
    return v ? v->as_bool() : value;
  }

  std::vector<int32_t> token_ids(const json::Value& ids, const char* what) const {
    std::vector<int32_t> tokens;
    for (const json::Value& id : ids.as_array())
      tokens.push_back(static_cast<int32_t>(integer(id, what, 0, context_.vocab - 1)));
    return tokens;
  }

  void read_prompt(TextRequest& request) const {
    const json::Value* prompt = find("prompt");
    if (!prompt) fail_usage("expected \"prompt\" in \"body\"");
    if (prompt->is_string())
      request.prompt = prompt->as_string();
    else if (prompt->is_array())
      request.prompt = token_ids(*prompt, "token ids");
    else
      fail_usage("expected a prompt of text or token ids, found {}", prompt->type_name());
  }

  void read_messages(TextRequest& request) const {
    const json::Value* messages = find("messages");
    if (!messages) fail_usage("expected \"messages\" in \"body\"");
    if (!context_.chat) fail_usage("\"messages\" need a chat template; {}", context_.no_chat);
    Conversation conversation{.messages = *messages,
                              .add_generation_prompt = read_flag("add_generation_prompt", true)};
    if (const json::Value* tools = find("tools")) conversation.tools = *tools;
    if (const json::Value* variables = find("chat_template_kwargs")) {
      if (!variables->is_object())
        fail_usage("expected chat_template_kwargs as an object, found {}", variables->type_name());
      conversation.variables = variables->as_object();
    }
    request.prompt = context_.chat->render(conversation, context_.clock);
    request.add_special_tokens = false;
  }

  void read_lengths(SamplingParams& p) const {
    read_integer("max_tokens", p.max_tokens, 1);
    read_integer("max_completion_tokens", p.max_tokens, 1);
    read_integer("min_tokens", p.min_tokens, 0);
    p.ignore_eos = read_flag("ignore_eos", p.ignore_eos);
  }

  void read_sampling(SamplingParams& p) const {
    read_integer("n", p.n, 1);
    read_integer("top_k", p.top_k, -1);
    read_number("temperature", p.temperature);
    read_number("top_p", p.top_p);
    read_number("min_p", p.min_p);
    read_number("repetition_penalty", p.repetition_penalty);
    read_number("presence_penalty", p.presence_penalty);
    read_number("frequency_penalty", p.frequency_penalty);
    if (const json::Value* v = find("seed"))
      p.seed = static_cast<uint64_t>(integer(*v, "seed", 0, INT64_MAX));
    if (const json::Value* v = find("logit_bias")) read_logit_bias(*v, p);
  }

  // {"token id": bias}
  static void read_logit_bias(const json::Value& bias, SamplingParams& p) {
    if (!bias.is_object())
      fail_usage("expected logit_bias as an object, found {}", bias.type_name());
    for (const auto& [key, value] : bias.as_object()) {
      int32_t token = 0;
      const auto end = std::from_chars(key.data(), key.data() + key.size(), token);
      if (end.ec != std::errc() || end.ptr != key.data() + key.size() || !value.is_number())
        fail_usage("expected a token id and a number in logit_bias, found {}: {}",
                   json::quoted(key), json::excerpt(value));
      p.logit_bias.emplace_back(token, value.as_number());
    }
  }

  void read_stops(TextRequest& request) const {
    if (const json::Value* v = find("stop")) {
      request.stop.clear();
      if (v->is_string())
        request.stop = {v->as_string()};
      else
        for (const json::Value& stop : v->as_array()) request.stop.push_back(stop.as_string());
    }
    request.include_stop = read_flag("include_stop_str_in_output", false);
    SamplingParams& p = request.params;
    if (const json::Value* v = find("stop_token_ids"))
      p.stop_token_ids = token_ids(*v, "stop_token_ids");
    if (!p.ignore_eos)
      p.stop_token_ids.insert(p.stop_token_ids.end(), context_.end_tokens.begin(),
                              context_.end_tokens.end());
  }

  // OpenAI's response_format, or vLLM's structured_outputs and guided_*, but one of them.
  void read_constraint(TextRequest& request) const {
    json::Value what;
    if (const json::Value* v = find("structured_outputs")) {
      if (!v->is_object())
        fail_usage("expected structured_outputs as an object, found {}", v->type_name());
      what = *v;
    }
    for (const char* kind : {"regex", "choice", "json"})
      if (const json::Value* v = find((std::string("guided_") + kind).c_str())) what.set(kind, *v);
    if (const json::Value* v = find("response_format")) read_response_format(*v, what);
    if (what.is_null()) return;
    if (!context_.constraints) fail_usage("constrained answers are not supported here");
    request.constraint = context_.constraints->compile(what);
  }

  static void read_response_format(const json::Value& format, json::Value& what) {
    const json::Value* type = format.find("type");
    const std::string name = type && type->is_string() ? type->as_string() : "";
    if (name == "text") return;
    if (name == "json_object") return what.set("json_object", true);
    const json::Value* named = format.find("json_schema");
    const json::Value* schema = named ? named->find("schema") : nullptr;
    if (name != "json_schema" || !schema)
      fail_usage(
          "expected response_format of type text, json_object or json_schema with a "
          "schema, found {}",
          json::excerpt(format));
    what.set("json", *schema);
  }

  std::optional<int32_t> count(const char* name) const {
    const json::Value* v = find(name);
    if (!v) return std::nullopt;
    return static_cast<int32_t>(integer(*v, name, 0, std::min(context_.vocab, kMaxLogprobs)));
  }

  void read_logprobs(SamplingParams& p) const {
    if (const auto n = count("logprobs")) p.logprobs = n;
    if (const auto n = count("prompt_logprobs")) p.prompt_logprobs = n;
  }

  // {"logprobs": true, "top_logprobs": 5}
  void read_chat_logprobs(SamplingParams& p) const {
    const auto top = count("top_logprobs");
    if (read_flag("logprobs", false))
      p.logprobs = top.value_or(0);
    else if (top)
      fail_usage("top_logprobs needs \"logprobs\": true");
    if (const auto n = count("prompt_logprobs")) p.prompt_logprobs = n;
  }

  static constexpr int32_t kMaxLogprobs = 1024;

  const json::Value& body_;
  const Context& context_;
};

// A token as text; bytes that are no characters are spelled as OpenAI does, "bytes:\\xe2\\x82".
std::string text_of(const Tokenizer& tokenizer, int32_t token) {
  const std::string_view bytes = tokenizer.token_bytes(token);
  if (utf8::find_invalid(bytes) == std::string::npos) return std::string(bytes);
  std::string spelled = "bytes:";
  for (const char byte : bytes)
    spelled += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return spelled;
}

json::Value chat_logprob(const Tokenizer& tokenizer, const TokenLogprob& of) {
  json::Array bytes;
  for (const char byte : tokenizer.token_bytes(of.token))
    bytes.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
  return json::Object{{"token", text_of(tokenizer, of.token)},
                      {"logprob", static_cast<double>(of.logprob)},
                      {"bytes", std::move(bytes)},
                      {"token_id", static_cast<int64_t>(of.token)}};
}

json::Value chat_logprobs(const Tokenizer& tokenizer, const std::vector<TokenLogprobs>& all) {
  json::Array content;
  for (const TokenLogprobs& one : all) {
    json::Value entry = chat_logprob(tokenizer, one);
    json::Array top;
    for (const TokenLogprob& other : one.top) top.push_back(chat_logprob(tokenizer, other));
    entry.set("top_logprobs", std::move(top));
    content.push_back(std::move(entry));
  }
  return json::Object{{"content", std::move(content)}};
}

json::Value completion_logprobs(const Tokenizer& tokenizer, const std::vector<TokenLogprobs>& all) {
  json::Array tokens, logprobs, tops, offsets;
  int64_t offset = 0;
  for (const TokenLogprobs& one : all) {
    const std::string text = text_of(tokenizer, one.token);
    json::Value top = json::Object();
    for (const TokenLogprob& other : one.top)
      top.set(text_of(tokenizer, other.token), static_cast<double>(other.logprob));
    tokens.push_back(text);
    logprobs.push_back(static_cast<double>(one.logprob));
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += static_cast<int64_t>(text.size());
  }
  return json::Object{{"tokens", std::move(tokens)},
                      {"token_logprobs", std::move(logprobs)},
                      {"top_logprobs", std::move(tops)},
                      {"text_offset", std::move(offsets)}};
}

// vLLM's prompt_logprobs: null for the first token, then {"id": {logprob, rank, decoded_token}}.
json::Value prompt_logprobs(const Tokenizer& tokenizer, const std::vector<TokenLogprobs>& all) {
  json::Array out{nullptr};
  for (const TokenLogprobs& one : all) {
    json::Value entry;
    const auto add = [&](const TokenLogprob& of) {
      entry.set(std::to_string(of.token),
                json::Object{{"logprob", static_cast<double>(of.logprob)},
                             {"rank", static_cast<int64_t>(of.rank)},
                             {"decoded_token", text_of(tokenizer, of.token)}});
    };
    add(one);
    for (const TokenLogprob& other : one.top) add(other);
    out.push_back(std::move(entry));
  }
  return out;
}

json::Value choice_of(const Request& request, const TextAnswer& answer, int64_t index,
                      const Tokenizer& tokenizer) {
  const bool chat = request.endpoint == Endpoint::chat;
  const SamplingParams& p = request.text.params;
  json::Value choice;
  choice.set("index", index);
  if (chat)
    choice.set("message", json::Object{{"role", "assistant"}, {"content", answer.text}});
  else
    choice.set("text", answer.text);
  if (p.logprobs)
    choice.set("logprobs", chat ? chat_logprobs(tokenizer, answer.logprobs)
                                : completion_logprobs(tokenizer, answer.logprobs));
  if (p.prompt_logprobs)
    choice.set("prompt_logprobs", prompt_logprobs(tokenizer, answer.prompt_logprobs));
  choice.set("finish_reason", name_of(answer.finish));
  choice.set("logits_hash", to_hex(answer.logits_hash));
  return choice;
}

}  // namespace

Request parse_request(const json::Value& body, Endpoint endpoint, const Context& context) {
  return Reader(body, context).read(endpoint);
}

json::Value answer_body(const Request& request, std::span<const TextAnswer> answers,
                        const Tokenizer& tokenizer) {
  json::Array choices;
  int64_t completion = 0;
  for (const TextAnswer& answer : answers) {
    choices.push_back(choice_of(request, answer, std::ssize(choices), tokenizer));
    completion += std::ssize(answer.tokens);
  }
  const int64_t prompt = answers.empty() ? 0 : std::ssize(answers[0].prompt_tokens);
  json::Value body;
  body.set("object", request.endpoint == Endpoint::chat ? "chat.completion" : "text_completion");
  body.set("choices", std::move(choices));
  body.set("usage", json::Object{{"prompt_tokens", prompt},
                                 {"completion_tokens", completion},
                                 {"total_tokens", prompt + completion}});
  if (answers.size() == 1) body.set("logits_hash", to_hex(answers[0].logits_hash));
  return body;
}

}  // namespace invar::openai
