#include <fmt/format.h>

#include <algorithm>

#include "base/ends.h"
#include "base/error.h"
#include "base/json_values.h"
#include "frontend/anthropic.h"
#include "frontend/body_fields.h"
#include "frontend/custom_tools.h"
#include "frontend/foreign_fields.h"
#include "frontend/llama_server.h"
#include "frontend/ollama.h"
#include "frontend/openai.h"
#include "frontend/openai_form.h"
#include "frontend/openai_prompt.h"
#include "frontend/openai_sampling.h"
#include "frontend/request_limits.h"
#include "frontend/responses.h"
#include "frontend/tool_choice.h"

namespace invar::openai {

namespace {

// Beside those that is_answer_field knows.
constexpr std::string_view kCommonFields[] = {"model",
                                              "max_completion_tokens",
                                              "add_special_tokens",
                                              "truncate_prompt_tokens",
                                              "guided_regex",
                                              "guided_choice",
                                              "guided_json",
                                              "guided_grammar",
                                              "user",
                                              "stream",
                                              "stream_options",
                                              "return_token_ids",
                                              "return_tokens_as_token_ids",
                                              "samplers",
                                              "logits_hash",
                                              "receipt"};
constexpr std::string_view kCompletionFields[] = {"prompt", "suffix", "echo"};
constexpr std::string_view kChatFields[] = {"messages",
                                            "tools",
                                            "tool_choice",
                                            "parallel_tool_calls",
                                            "top_logprobs",
                                            "chat_template_kwargs",
                                            "prediction",
                                            "continue_final_message",
                                            "add_generation_prompt",
                                            "reasoning_effort",
                                            "thinking",
                                            "enable_thinking",
                                            "thinking_token_budget",
                                            "stop_in_reasoning"};

// Reads the fields of one body.
class Reader {
 public:
  // `lenient`: of an agent's body, what cannot be done is a warning where the answer makes sense
  // without it.
  Reader(const json::Value& body, const Context& context, bool lenient = false)
      : body_(body), fields_(body), context_(context), lenient_(lenient) {}

  Request read(Endpoint endpoint, RequestWarnings warnings = {}) {
    if (!body_.is_object()) fail_usage("expected an object, found {}", body_.type_name());
    const bool chat = endpoint == Endpoint::chat;
    refuse_fields(body_, foreign_fields());
    Request request{.endpoint = endpoint, .warnings = std::move(warnings)};
    request.base.params = context_.defaults;
    request.ignored = unknown_fields(chat);
    note_samplers(request.warnings);
    if (const json::Value* v = fields_.find("model")) request.model = text_of(*v, "model");
    chat ? read_thoughts(request) : refuse_thoughts(fields_, "a completion has text alone");
    chat ? read_conversation(fields_, context_, request) : read_prompts(fields_, context_, request);
    request.add_special_tokens = fields_.read_flag("add_special_tokens", !chat);
    request.truncate_prompt_tokens = read_truncation(fields_);
    if (!chat) read_echo(request);
    read_lengths(request);
    read_fields(fields_, context_, request.base);
    request.has_seed = given_seed(fields_) != nullptr;
    request.clamps_length = lenient_ || context_.clamps_length;
    request.has_length = fields_.find("max_tokens") || fields_.find("max_completion_tokens");
    read_stops(request);
    chat ? read_chat_logprobs(request.base.params) : read_logprobs(request.base.params);
    if (const json::Value* mode = fields_.find("logprobs_mode"))
      request.base.params.logprobs_mode = logprobs_mode_of(text_of(*mode, "logprobs_mode"));
    if (request.echo && request.base.params.logprobs && !fields_.find("prompt_logprobs"))
      request.base.params.prompt_logprobs = request.base.params.logprobs;
    FormReader form(fields_, context_, lenient_);
    if (chat) within("tools", [&] { form.read_tool_choice(request); });
    if (chat) read_prediction(fields_, context_, request);
    form.read_form(request);
    read_stream(request);
    request.token_ids = fields_.read_flag("return_token_ids", false);
    request.tokens_as_ids = fields_.read_flag("return_tokens_as_token_ids", false);
    request.logits_hash = fields_.read_flag("logits_hash", !context_.ignores_unknown);
    request.receipt = fields_.read_flag("receipt", false);
    if (request.receipt && request.prompt_only)
      fail_usage("a receipt is of an answer: expected max_tokens of 1 or more, found 0");
    request.base.hash_logits = request.logits_hash || request.receipt;
    if (request.base.routed_experts && (request.stream || fields_.find("stop")))
      fail_usage("return_routed_experts: expected neither a stream nor stop strings beside it");
    return request;
  }

 private:
  void read_thoughts(Request& request) const {
    request.thought_format = context_.thought_format;
    request.seal = context_.seal;
    request.thoughts = read_thought_settings(fields_, context_.thought_format, context_.chat);
    request.goes_on = fields_.read_flag("continue_final_message", begins_answer());
  }

  // Whether the last message is the beginning of the answer, as Mistral and DeepSeek ("prefix") and
  // Qwen and Kimi ("partial") have it.
  bool begins_answer() const {
    const json::Value* messages = fields_.find("messages");
    if (!messages || !messages->is_array() || messages->as_array().empty()) return false;
    const json::Value& last = last_of(messages->as_array());
    const auto is_said = [&](const char* name) {
      const json::Value* found = last.find(name);
      return found && *found == json::Value(true);
    };
    const json::Value *role = last.find("role"), *content = last.find("content");
    return role && *role == json::Value("assistant") && content && !content->is_null() &&
           *content != json::Value("") && (is_said("prefix") || is_said("partial"));
  }

  // Fields of the body that no one here knows. Throws UsageError unless they are to be ignored.
  std::vector<std::string> unknown_fields(bool chat) const {
    std::vector<std::string> unknown;
    for (const auto& [key, value] : body_.as_object()) {
      if (is_answer_field(key) || among(key, kCommonFields) || find_field(foreign_fields(), key) ||
          (chat ? among(key, kChatFields) : among(key, kCompletionFields)))
        continue;
      if (!context_.ignores_unknown)
        fail_usage("the field {} of \"body\" is not supported", json::quoted(key));
      if (!value.is_null()) unknown.push_back(key);
    }
    return unknown;
  }

  // Names of llama.cpp's filters in the order in which they are to be applied.
  void note_samplers(RequestWarnings& warnings) const {
    const json::Value* names = fields_.find("samplers");
    if (names && *names != json::Value(json::Array()))
      warnings.add("samplers has no effect: filters are applied in the server's order");
  }

  // vLLM's way to ask for a prompt's log-probabilities alone: echo and no tokens.
  void read_echo(Request& request) const {
    request.echo = fields_.read_flag("echo", false);
    const json::Value* most = fields_.find("max_tokens");
    request.prompt_only = request.echo && most && *most == json::Value(0);
  }

  void read_lengths(Request& request) const {
    SamplingParams& p = request.base.params;
    if (request.prompt_only)
      p.max_tokens = 1;
    else
      fields_.read_integer("max_tokens", p.max_tokens, 1);
    fields_.read_integer("max_completion_tokens", p.max_tokens, 1);
  }

  void read_stops(Request& request) const {
    invar::Request& answer = request.base;
    if (const json::Value* v = fields_.find("stop")) {
      std::vector<std::string> stops;
      if (!v->is_array()) stops = {text_of(*v, "stop", kMaxStopBytes)};
      if (v->is_array())
        for (const json::Value& one : list_of(*v, "stop strings in stop", kMaxStops))
          stops.push_back(text_of(one, "a stop string in stop", kMaxStopBytes));
      if (!stops.empty() && context_.tokenizer) context_.tokenizer->expect_text();
      answer.stop = stops;
    }
    SamplingParams& p = answer.params;
    if (const json::Value* v = fields_.find("stop_token_ids"))
      p.stop_token_ids = token_ids_of(*v, "stop_token_ids", context_.vocab, kMaxStopTokenIds);
    request.stop_token_ids = p.stop_token_ids;
    if (p.ignore_eos) return;
    std::vector<int32_t>& ids = p.stop_token_ids.edit();
    ids.insert(ids.end(), context_.end_tokens.begin(), context_.end_tokens.end());
  }

  void read_stream(Request& request) const {
    request.stream = fields_.read_flag("stream", false);
    const json::Value* options = fields_.find("stream_options");
    if (!options) return;
    if (!options->is_object())
      fail_usage("expected stream_options as an object, found {}", options->type_name());
    if (!request.stream) fail_usage("stream_options need \"stream\": true");
    const auto flag = [&](const char* name, bool otherwise) {
      const json::Value* v = options->find(name);
      return v && v->is_bool() ? v->as_bool() : otherwise;
    };
    request.usage_at_end = flag("include_usage", true);
    request.usage_always = flag("continuous_usage_stats", false);
  }

  std::optional<int32_t> count(const char* name) const {
    const json::Value* v = fields_.find(name);
    if (!v) return std::nullopt;
    const int32_t most = std::min(context_.vocab, context_.max_logprobs);
    if (v->is_integer() && v->as_integer() > most)
      fail_usage("expected {} from 0 to {} (max-logprobs), found {}", name, most, v->as_integer());
    return static_cast<int32_t>(integer_of(*v, name, 0, most));
  }

  void read_logprobs(SamplingParams& p) const {
    if (const auto n = count("logprobs")) p.logprobs = n;
    if (const auto n = count("prompt_logprobs")) p.prompt_logprobs = n;
  }

  // {"logprobs": true, "top_logprobs": 5}
  void read_chat_logprobs(SamplingParams& p) const {
    const auto top = count("top_logprobs");
    if (fields_.read_flag("logprobs", false))
      p.logprobs = top.value_or(0);
    else if (top.value_or(0) > 0)
      fail_usage("top_logprobs needs \"logprobs\": true");
    if (const auto n = count("prompt_logprobs")) p.prompt_logprobs = n;
  }

  const json::Value& body_;
  const BodyFields fields_;
  const Context& context_;
  const bool lenient_;
};

}  // namespace

namespace {

// A body that an agent sent, translated. Thoughts of a model that has none are ignored.
Request read_agent(json::Value chat, const Context& context, RequestWarnings warnings) {
  const auto asks_for_thoughts = [&](const json::Member& member) {
    return (member.first == "thinking" || member.first == "reasoning_effort") &&
           !member.second.is_null();
  };
  if (context.thought_format == ThoughtFormat::none &&
      std::erase_if(chat.as_object(), asks_for_thoughts) > 0)
    warnings.add("thinking and effort are ignored: the model has no thoughts");
  return Reader(chat, context, true).read(Endpoint::chat, std::move(warnings));
}

// A chat completion, whose custom tools are functions here.
Request read_chat(const json::Value& body, const Context& context) {
  RequestWarnings warnings;
  std::vector<std::string> custom;
  const auto tools = with_plain_tools(body, custom);
  const json::Value& sent = tools ? *tools : body;
  const auto chosen = with_plain_choice(sent);
  Request request =
      Reader(chosen ? *chosen : sent, context).read(Endpoint::chat, std::move(warnings));
  request.custom_tools = std::move(custom);
  return request;
}

// By way of the chat completion that it is; fields keep the names that they have here.
Request read_response(const json::Value& body, const Context& context) {
  const auto own = [](const std::string& field) -> std::string {
    return field == "messages" ? "input" : field == "response_format" ? "text" : field;
  };
  try {
    RequestWarnings warnings;
    json::Value chat = chat_body_of(body, context.earlier, context.seal, warnings);
    Request request = read_agent(std::move(chat), context, std::move(warnings));
    request.form_field = own(request.form_field);
    return request;
  } catch (const FieldError& error) {
    throw FieldError(own(error.field()), error.what());
  }
}

// Ollama's, of /api/chat or /api/generate.
Request read_ollama(const json::Value& body, Endpoint endpoint, const Context& context) {
  RequestWarnings warnings;
  ollama::Generated made;
  if (endpoint == Endpoint::ollama_chat)
    made.body = ollama::chat_body_of(body, context, warnings);
  else
    made = ollama::generate_body_of(body, context, warnings);
  Request request =
      Reader(made.body, context, true)
          .read(made.is_chat ? Endpoint::chat : Endpoint::completions, std::move(warnings));
  if (request.answers() != 1) fail_usage("expected one prompt, found {}", request.answers());
  request.endpoint = endpoint;
  return request;
}

// llama.cpp's, of /completion or /infill.
Request read_llama(const json::Value& body, Endpoint endpoint, const Context& context) {
  RequestWarnings warnings;
  const json::Value made = endpoint == Endpoint::llama_infill
                               ? llama_server::infill_body_of(body, context, warnings)
                               : llama_server::completion_body_of(body, context, warnings);
  Request request = Reader(made, context, true).read(Endpoint::completions, std::move(warnings));
  if (request.base.params.n != 1) fail_usage("expected n as 1, found {}", request.base.params.n);
  if (request.stream && request.answers() != 1)
    fail_usage("expected one prompt of a stream, found {}", request.answers());
  llama_server::Shown shown = llama_server::shown_of(body);
  request.prompt_only = shown.computes_nothing;
  request.token_ids = shown.token_ids;
  request.shown_fields = std::move(shown.fields);
  request.endpoint = endpoint;
  return request;
}

// Before anything of it is copied.
void check_conversation(const json::Value& body, const Context& context) {
  size_t bytes = 0;
  for (const char* name : {"messages", "input", "instructions", "system"})
    if (const json::Value* said = body.find(name)) bytes += json::text_bytes(*said);
  if (bytes > most_text(context))
    throw PromptTooLong(fmt::format("expected a conversation of at most {} bytes, found {}",
                                    most_text(context), bytes));
}

// A text of no words, or blocks of nothing else.
bool is_empty(const json::Value& content) {
  const auto says_nothing = [](const json::Value& block) {
    const json::Value *type = block.find("type"), *text = block.find("text");
    return type && *type == json::Value("text") && text && *text == json::Value("");
  };
  if (!content.is_array()) return content == json::Value("");
  return !content.as_array().empty() && std::ranges::all_of(content.as_array(), says_nothing);
}

// A message of a user must say something, as with Anthropic's service. The journal keeps bodies
// without messages.
void expect_words(const json::Value& body) {
  const json::Value* messages = body.find("messages");
  if (!messages || !messages->is_array()) return;
  for (const json::Value& message : messages->as_array()) {
    const json::Value *role = message.find("role"), *content = message.find("content");
    const bool is_user = role && *role == json::Value("user");
    if (is_user && (!content || content->is_null() || is_empty(*content)))
      throw FieldError("messages", "expected words in a user's message, found none");
  }
}

}  // namespace

Request parse_request(const json::Value& body, Endpoint endpoint, const Context& context) {
  if (body.is_object() && body.as_object().size() > kMaxFields)
    fail_usage("expected at most {} fields in the body, found {}", kMaxFields,
               body.as_object().size());
  if (body.is_object() && endpoint != Endpoint::completions) check_conversation(body, context);
  if (endpoint == Endpoint::messages) {
    if (context.renders) expect_words(body);
    RequestWarnings warnings;
    json::Value chat = anthropic::chat_body_of(body, context.seal, warnings);
    Request request = read_agent(std::move(chat), context, std::move(warnings));
    request.endpoint = endpoint;
    return request;
  }
  if (endpoint == Endpoint::responses) {
    Request request = read_response(body, context);
    if (request.base.params.n != 1) fail_usage("a response has one answer: n must be 1");
    request.endpoint = endpoint;
    read_reasoning(body, request);
    if (const json::Value* tools = body.find("tools")) request.asked_tools = *tools;
    if (const json::Value* choice = body.find("tool_choice")) request.asked_choice = *choice;
    if (const json::Value* id = body.find("previous_response_id")) request.asked_previous = *id;
    if (!request.asked_previous.is_null() && context.renders && !context.earlier)
      fail_usage("previous_response_id needs a server with a journal");
    return request;
  }
  if (endpoint == Endpoint::ollama_chat || endpoint == Endpoint::ollama_generate)
    return read_ollama(body, endpoint, context);
  if (endpoint == Endpoint::llama_completion || endpoint == Endpoint::llama_infill)
    return read_llama(body, endpoint, context);
  if (endpoint == Endpoint::chat && body.is_object()) return read_chat(body, context);
  return Reader(body, context).read(endpoint);
}

}  // namespace invar::openai
