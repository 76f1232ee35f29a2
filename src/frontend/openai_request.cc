#include <fmt/format.h>

#include <algorithm>

#include "base/ends.h"
#include "base/error.h"
#include "base/json_values.h"
#include "frontend/anthropic.h"
#include "frontend/body_fields.h"
#include "frontend/fill_in_middle.h"
#include "frontend/foreign_fields.h"
#include "frontend/llama_server.h"
#include "frontend/ollama.h"
#include "frontend/openai.h"
#include "frontend/openai_sampling.h"
#include "frontend/request_limits.h"
#include "frontend/responses.h"
#include "sampling/grammar/languages.h"

namespace invar::openai {

namespace {

constexpr std::string_view kCommonFields[] = {"model",
                                              "max_tokens",
                                              "max_completion_tokens",
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
                                              "add_special_tokens",
                                              "logit_bias",
                                              "bad_words",
                                              "allowed_token_ids",
                                              "truncate_prompt_tokens",
                                              "skip_special_tokens",
                                              "n",
                                              "logprobs",
                                              "prompt_logprobs",
                                              "logprobs_mode",
                                              "response_format",
                                              "structured_outputs",
                                              "guided_regex",
                                              "guided_choice",
                                              "guided_json",
                                              "guided_grammar",
                                              "user",
                                              "stream",
                                              "stream_options",
                                              "return_token_ids",
                                              "return_tokens_as_token_ids",
                                              "logits_hash",
                                              "receipt",
                                              "return_routed_experts",
                                              "cache_salt",
                                              "priority"};
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

constexpr std::string_view kRoles[] = {"system",    "developer", "user",
                                       "assistant", "tool",      "function"};

constexpr const char* kNotHeld =
    "strict tools and parallel_tool_calls false are not held to in the model's format of calls";

// Of a conversation, and of a prompt of which the end is kept: more is not looked at.
size_t most_text(const Context& context) {
  return std::max(context.max_prompt_bytes, kMaxTextBytes);
}

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
    if (const json::Value* v = fields_.find("model")) request.model = text_of(*v, "model");
    chat ? read_thoughts(request) : refuse_thoughts(fields_, "a completion has text alone");
    chat ? read_conversation(request) : read_prompts(request);
    request.add_special_tokens = fields_.read_flag("add_special_tokens", !chat);
    request.truncate_prompt_tokens = read_truncation();
    if (!chat) read_echo(request);
    read_lengths(request);
    read_sampling(fields_, context_, request.base.params);
    request.has_seed = given_seed(fields_) != nullptr;
    request.clamps_length = lenient_ || context_.clamps_length;
    request.has_length = fields_.find("max_tokens") || fields_.find("max_completion_tokens");
    read_stops(request);
    chat ? read_chat_logprobs(request.base.params) : read_logprobs(request.base.params);
    if (const json::Value* mode = fields_.find("logprobs_mode"))
      request.base.params.logprobs_mode = logprobs_mode_of(text_of(*mode, "logprobs_mode"));
    if (request.echo && request.base.params.logprobs && !fields_.find("prompt_logprobs"))
      request.base.params.prompt_logprobs = request.base.params.logprobs;
    if (chat) within("tools", [&] { read_tool_choice(request); });
    if (chat) read_prediction(request);
    read_form(request);
    read_stream(request);
    request.token_ids = fields_.read_flag("return_token_ids", false);
    request.tokens_as_ids = fields_.read_flag("return_tokens_as_token_ids", false);
    request.logits_hash = fields_.read_flag("logits_hash", !context_.ignores_unknown);
    request.receipt = fields_.read_flag("receipt", false);
    if (request.receipt && request.prompt_only)
      fail_usage("a receipt is of an answer: expected max_tokens of 1 or more, found 0");
    request.base.hash_logits = request.logits_hash || request.receipt;
    request.base.routed_experts = fields_.read_flag("return_routed_experts", false);
    if (request.base.routed_experts && (request.stream || fields_.find("stop")))
      fail_usage("return_routed_experts: expected neither a stream nor stop strings beside it");
    if (const json::Value* v = fields_.find("cache_salt"))
      request.base.cache_salt = text_of(*v, "cache_salt", kMaxSaltBytes);
    fields_.read_integer("priority", request.base.priority, INT32_MIN);
    return request;
  }

 private:
  void read_thoughts(Request& request) const {
    request.thought_format = context_.thought_format;
    request.seal = context_.seal;
    request.thoughts = read_thought_settings(fields_, context_.thought_format, context_.chat);
    request.goes_on = fields_.read_flag("continue_final_message", false);
  }

  // {"type": "content", "content": a text or parts of text}
  void read_prediction(Request& request) const {
    const json::Value* prediction = fields_.find("prediction");
    if (!prediction) return;
    const json::Value* type = prediction->find("type");
    const json::Value* content = prediction->find("content");
    if (!type || *type != json::Value("content") || !content ||
        !(content->is_string() || content->is_array()))
      fail_usage("expected a prediction of type content with text as its content, found {}",
                 json::excerpt(*prediction));
    std::string all;
    if (content->is_string()) all = content->as_string();
    for (const json::Value& part : content->is_array() ? content->as_array() : json::Array()) {
      const json::Value* words = part.find("text");
      if (!words || !words->is_string())
        fail_usage("expected parts of type text in a prediction, found {}", json::excerpt(part));
      all += words->as_string();
    }
    if (all.size() > context_.max_prompt_bytes)
      fail_usage("expected a prediction of at most {} bytes, found {}", context_.max_prompt_bytes,
                 all.size());
    request.base.prediction =
        context_.tokenizer->encode(all, {.add_special_tokens = false, .parse_special = false});
  }

  // Fields of the body that no one here knows. Throws UsageError unless they are to be ignored.
  std::vector<std::string> unknown_fields(bool chat) const {
    std::vector<std::string> unknown;
    for (const auto& [key, value] : body_.as_object()) {
      if (among(key, kCommonFields) || find_field(foreign_fields(), key) ||
          (chat ? among(key, kChatFields) : among(key, kCompletionFields)))
        continue;
      if (!context_.ignores_unknown)
        fail_usage("the field {} of \"body\" is not supported", json::quoted(key));
      if (!value.is_null()) unknown.push_back(key);
    }
    return unknown;
  }

  // A text, token ids, or a list of either.
  void read_prompts(Request& request) const {
    const json::Value* prompt = fields_.find("prompt");
    if (!prompt) fail_usage("expected \"prompt\" in \"body\"");
    if (const json::Value* suffix = fields_.find("suffix"); suffix && *suffix != json::Value(""))
      return request.prompts.push_back(read_middle(*prompt, text_of(*suffix, "suffix")));
    const bool many = prompt->is_array() && !prompt->as_array().empty() &&
                      !first_of(prompt->as_array()).is_number();
    if (!many) return request.prompts.push_back(read_prompt(*prompt));
    for (const json::Value& one : list_of(*prompt, "prompts", kMaxPrompts))
      request.prompts.push_back(read_prompt(one));
  }

  // A text whose middle is asked for: what stands before it, and behind it.
  Prompt read_middle(const json::Value& prompt, const std::string& suffix) const {
    if (fields_.read_flag("echo", false)) fail_usage("expected no echo beside suffix, found true");
    const std::string& prefix = text_of(prompt, "prompt");
    const json::Value ids = middle_prompt(context_, {.prefix = prefix, .suffix = suffix});
    return token_ids_of(ids, "token ids in prompt", context_.vocab);
  }

  Prompt read_prompt(const json::Value& prompt) const {
    if (prompt.is_string()) {
      check_size(prompt.as_string());
      return prompt.as_string();
    }
    if (prompt.is_array()) return token_ids_of(prompt, "token ids in prompt", context_.vocab);
    fail_usage("expected a prompt of text or token ids, found {}", prompt.type_name());
  }

  void read_conversation(Request& request) const {
    request.prompts.emplace_back();
    if (!context_.renders) return;
    last_of(request.prompts) = within("messages", [&] { return rendered(request); });
    check_size(std::get<std::string>(last_of(request.prompts)));
  }

  std::string rendered(Request& request) const {
    const json::Value* messages = fields_.find("messages");
    if (!messages) fail_usage("expected \"messages\" in \"body\"");
    if (!context_.chat) fail_usage("\"messages\" need a chat template; {}", context_.no_chat);
    for (const json::Value& message : messages->is_array() ? messages->as_array() : json::Array())
      check_role(message.find("role"));
    const bool goes_on = request.goes_on;
    Conversation conversation{
        .messages = *messages,
        .add_generation_prompt = fields_.read_flag("add_generation_prompt", !goes_on),
        .continue_final_message = goes_on};
    if (goes_on && conversation.add_generation_prompt)
      fail_usage("continue_final_message needs add_generation_prompt: false, found true");
    const json::Value* choice = fields_.find("tool_choice");
    const json::Value* tools = fields_.find("tools");
    if (tools && !(choice && *choice == json::Value("none"))) conversation.tools = *tools;
    if (const json::Value* variables = fields_.find("chat_template_kwargs")) {
      if (!variables->is_object())
        fail_usage("expected chat_template_kwargs as an object, found {}", variables->type_name());
      if (const size_t bytes = json::dump(*variables).size(); bytes > kMaxTemplateVariablesBytes)
        fail_usage("expected chat_template_kwargs of at most {} bytes, found {}",
                   kMaxTemplateVariablesBytes, bytes);
      conversation.variables = variables->as_object();
    }
    set_variables(request.thoughts, conversation.variables);
    return rendered(conversation, request);
  }

  std::string rendered(const Conversation& conversation, Request& request) const {
    NormalConversation normal = context_.chat->normal(conversation);
    json::Value shown;
    if (context_.shows_conversation) {
      shown = json::Object{{"messages", normal.messages}, {"tools", normal.tools}};
      shown.set("changes", json::Array(normal.changes.begin(), normal.changes.end()));
    }
    std::string text = context_.chat->render(conversation, std::move(normal), context_.clock);
    if (context_.shows_conversation) shown.set("prompt", text);
    request.conversation = std::move(shown);
    return text;
  }

  void check_size(const std::string& prompt) const {
    const bool is_cut = fields_.find("truncate_prompt_tokens");
    const size_t most = is_cut ? most_text(context_) : context_.max_prompt_bytes;
    if (prompt.size() > most && is_cut)
      throw PromptTooLong(fmt::format(
          "expected a prompt of at most {} bytes, of which truncate_prompt_tokens keeps "
          "the end, found {}",
          most, prompt.size()));
    if (prompt.size() > most)
      throw PromptTooLong(
          fmt::format("the prompt has {} bytes: more than {} do not fit into the context, however "
                      "they are cut into tokens",
                      prompt.size(), context_.max_prompt_bytes));
  }

  // A template would write any word into the place that tells the model who speaks.
  static void check_role(const json::Value* role) {
    if (!role || !role->is_string() || among(role->as_string(), kRoles)) return;
    fail_usage(
        "expected the role of a message as system, developer, user, assistant, tool or function, "
        "found {}",
        json::quoted(role->as_string()));
  }

  // The last so many tokens of the prompt; -1: as many as fit.
  int32_t read_truncation() const {
    int32_t kept = 0;
    fields_.read_integer("truncate_prompt_tokens", kept, -1);
    if (kept == 0 && fields_.find("truncate_prompt_tokens"))
      fail_usage("expected truncate_prompt_tokens as -1 or at least 1, found 0");
    return kept;
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
    fields_.read_integer("min_tokens", p.min_tokens, 0);
    p.ignore_eos = fields_.read_flag("ignore_eos", p.ignore_eos);
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
    answer.include_stop = fields_.read_flag("include_stop_str_in_output", false);
    answer.skip_special = fields_.read_flag("skip_special_tokens", true);
    SamplingParams& p = answer.params;
    if (const json::Value* v = fields_.find("stop_token_ids"))
      p.stop_token_ids = token_ids_of(*v, "stop_token_ids", context_.vocab, kMaxStopTokenIds);
    request.stop_token_ids = p.stop_token_ids;
    if (p.ignore_eos) return;
    std::vector<int32_t>& ids = p.stop_token_ids.edit();
    ids.insert(ids.end(), context_.end_tokens.begin(), context_.end_tokens.end());
  }

  // OpenAI's response_format, or vLLM's structured_outputs and guided_*, but one of them.
  void read_form(Request& request) {
    json::Value& what = grammar_;
    std::string& field = request.form_field;
    field = what.is_null() ? "" : "tools";
    if (const json::Value* v = form_in("structured_outputs", field)) {
      if (!v->is_object())
        fail_usage("expected structured_outputs as an object, found {}", v->type_name());
      for (const auto& [kind, form] : v->as_object())
        if (!form.is_null()) read_structured(kind, form, what);  // what is left open may be null
    }
    for (const std::string kind : {"regex", "choice", "json", "grammar"})
      if (const json::Value* v = form_in("guided_" + kind, field)) what.set(kind, *v);
    if (const json::Value* v = form_in("response_format", field)) read_response_format(*v, what);
    within(field, [&] { check_form(what); });
    if (const json::Value* schema = schema_beside_calls(request, what)) {
      const json::Value answer = *schema;
      what = {};
      hold_calls(request, answer);
    } else if (what.is_null()) {
      hold_calls(request);
      field = "tools";
    }
    if (what.is_null()) return;
    if (context_.tokenizer) context_.tokenizer->expect_text();
    request.grammar = what;
    request.base.structured_output = json::dump(what);
    if (context_.constraints) request.base.constraint = context_.constraints->compile(what);
  }

  // The schema of an answer that may be calls in its place: beside tools that nobody has to call,
  // in a format with a grammar. Null: there is none.
  const json::Value* schema_beside_calls(const Request& request, const json::Value& what) const {
    static const json::Value kAnyObject = json::Object{{"type", "object"}};
    const json::Value* schema = what.is_object() ? what.find("json") : nullptr;
    if (what.is_object() && what.find("json_object")) schema = &kAnyObject;
    const bool is_alone = schema && what.as_object().size() == 1;
    if (!is_alone || !schema->is_object() || !has_grammar(request.tools)) return nullptr;
    return schema;
  }

  // A field that asks for a form; `field` becomes its name.
  const json::Value* form_in(const std::string& name, std::string& field) const {
    const json::Value* found = fields_.find(name);
    if (found) field = name;
    return found;
  }

  // JSON is compact unless vLLM's words ask for another spacing.
  static void read_structured(const std::string& kind, const json::Value& form, json::Value& what) {
    if (kind == "whitespace_pattern") return what.set("whitespace", form);
    if (kind != "disable_any_whitespace") return what.set(kind, form);
    if (!form.is_bool())
      fail_usage("expected disable_any_whitespace as true or false, found {}", form.type_name());
    if (!form.as_bool()) what.set("whitespace", std::string(grammar::kAnyLayout));
  }

  // Compiling one takes longer the larger it is.
  static void check_form(const json::Value& what) {
    if (what.is_null()) return;
    for (const auto& [kind, form] : what.as_object()) {
      if (kind == "choice" && form.is_array()) list_of(form, "texts in a choice", kMaxChoices);
      const bool is_pattern = kind == "regex" || kind == "whitespace";
      const size_t most = is_pattern ? kMaxRegexBytes : kMaxFormBytes;
      const size_t bytes = form.is_string() ? form.as_string().size() : json::dump(form).size();
      if (bytes > most)
        fail_usage("expected the form of an answer ({}) of at most {} bytes, found {}", kind, most,
                   bytes);
    }
  }

  // An answer that may have calls among its text, where it matters which: of strict tools, or not
  // more than one where the format can have several.
  // `answer`: null, or the schema of an answer without calls.
  void hold_calls(Request& request, const json::Value& answer = {}) {
    const ToolFormat format = request.tools;
    if (!has_grammar(format)) return;
    const bool once = !request.parallel_calls && format != ToolFormat::bare;
    const json::Value& tools = *fields_.find("tools");
    if (!once && !has_strict(tools) && answer.is_null()) return;
    const bool has_args = context_.tokenizer->id_of("[ARGS]").has_value();
    try {
      grammar_ =
          within("tools", [&] { return grammar_of_calls(tools, format, once, answer, has_args); });
    } catch (const UsageError&) {
      if (!lenient_ || !answer.is_null()) throw;
      request.warnings.add(kNotHeld);
    }
  }

  // "none", "auto", "required" or {"type": "function", "function": {"name": ...}}
  void read_tool_choice(Request& request) {
    request.parallel_calls = fields_.read_flag("parallel_tool_calls", true);
    const json::Value* tools = fields_.find("tools");
    const json::Value* choice = fields_.find("tool_choice");
    const std::string word = choice && choice->is_string() ? choice->as_string() : "auto";
    if (!tools || !tools->is_array() || tools->as_array().empty() || word == "none") {
      if (choice && !(choice->is_string() && (word == "none" || word == "auto")))
        fail_usage("tool_choice {} needs \"tools\", found none", json::excerpt(*choice));
      return;
    }
    list_of(*tools, "tools", kMaxTools);
    grammar_of_call(*tools, "");  // refuses what is no tool
    request.tool_list = *tools;
    if (choice && choice->is_object()) {
      const json::Value* function = choice->find("function");
      const json::Value* name = function ? function->find("name") : choice->find("name");
      if (!name) fail_usage("expected the name of a tool in {}", json::excerpt(*choice));
      request.tool = text_of(*name, "the name of a tool");
      request.tools = ToolFormat::arguments;
      grammar_ = grammar_of_call(*tools, request.tool);
    } else if (word == "required") {
      request.tools = ToolFormat::object;
      grammar_ = grammar_of_call(*tools, "");
    } else if (word == "auto") {
      request.tools = context_.tool_format;
      check_format(request, *tools);
    } else {
      fail_usage("expected tool_choice none, auto, required or a function, found {}",
                 json::excerpt(*choice));
    }
  }

  // Strict tools and one call alone are held to grammars, of the formats that have one.
  void check_format(Request& request, const json::Value& tools) const {
    const ToolFormat format = request.tools;
    const bool can_hold = format == ToolFormat::none || has_grammar(format);
    const bool is_held = !request.parallel_calls || has_strict(tools);
    if (!can_hold && is_held && lenient_) return request.warnings.add(kNotHeld);
    if (!can_hold && is_held)
      fail_usage(
          "strict tools and parallel_tool_calls false are not held to where calls are written as "
          "{} writes them: ask for tool_choice required or a function",
          name_of(format));
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

  // Any object, or, as others' servers have it, one of a schema beside.
  static void read_object(const json::Value& format, json::Value& what) {
    const json::Value* schema = format.find("schema");
    if (!schema || schema->is_null()) return what.set("json_object", true);
    if (!schema->is_object())
      fail_usage("expected the schema of response_format as an object, found {}",
                 json::excerpt(*schema));
    json::Value of_object = *schema;
    if (!schema->find("type") && !schema->find("$ref")) of_object.set("type", "object");
    what.set("json", std::move(of_object));
  }

  static void read_response_format(const json::Value& format, json::Value& what) {
    const json::Value* type = format.find("type");
    const std::string name = type && type->is_string() ? type->as_string() : "";
    if (name == "text") return;
    if (name == "json_object") return read_object(format, what);
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
  json::Value grammar_;  // what the answer is held to, for ConstraintCompiler; or null
};

}  // namespace

void settle_length(Request& request, size_t longest_prompt, int32_t context) {
  int32_t& most = request.base.params.max_tokens;
  const int64_t fits = int64_t{context} - static_cast<int64_t>(longest_prompt);
  if (request.has_length && request.clamps_length && most > fits && fits > 0) {
    request.warnings.add(fmt::format(
        "the answer has at most {} tokens instead of {}: the context ends there", fits, most));
    most = static_cast<int32_t>(fits);
  }
  if (request.has_length) return;
  fit_length(request.base.params, longest_prompt, context);
  request.has_length = true;
}

void settle_thoughts(Request& request, const std::vector<int32_t>& prompt,
                     const Tokenizer& tokenizer) {
  invar::Request& base = request.base;
  base.thoughts = thoughts_behind(request.thought_format, prompt, request.goes_on, tokenizer);
  base.thoughts.stops = request.thoughts.stops && base.thoughts.format != ThoughtFormat::none;
  std::vector<std::string_view> marks(marks_of(request.tools).begin(),
                                      marks_of(request.tools).end());
  if (base.thoughts.format != ThoughtFormat::none) {
    const ThoughtStyle& style = style_of(base.thoughts.format);
    marks.insert(marks.end(), style.marks.begin(), style.marks.end());
    json::Value form = json::Object{
        {"thought", to_json({.view = base.thoughts, .budget = request.thoughts.budget})}};
    if (request.grammar.is_object())
      for (const auto& [key, value] : request.grammar.as_object()) form.set(key, value);
    base.structured_output = json::dump(form);
  }
  base.shown_special = special_marks(marks, tokenizer);
}

invar::Request Request::answer(size_t i, Shared<std::vector<int32_t>> prompt) const {
  invar::Request one = base;
  one.prompt = std::move(prompt);
  const auto n = static_cast<size_t>(base.params.n);
  one.choice = static_cast<int32_t>(i % n);
  one.params.seed = seed_of(i / n);
  return one;
}

size_t Request::memory_bytes() const {
  constexpr size_t kAnswer = 4 << 10;
  constexpr size_t kCut = 1 << 17;  // of a prompt that is cut: more than most contexts
  const SamplingParams& p = base.params;
  const size_t longest = truncate_prompt_tokens == 0 ? SIZE_MAX : kCut;
  size_t prompt_bytes = 0;  // a token is a byte of text at least
  for (const Prompt& prompt : prompts)
    prompt_bytes += std::visit(
        [&](const auto& one) { return std::min(one.size(), longest) * sizeof(int32_t); }, prompt);
  size_t bytes = prompt_bytes * (1 + static_cast<size_t>(p.n)) + answers() * kAnswer;
  bytes += base.stop.memory_bytes() + base.prediction.size() * sizeof(int32_t);
  bytes += base.cache_salt.size() + base.structured_output.size();
  bytes += (p.stop_token_ids.size() + p.allowed_token_ids.size()) * sizeof(int32_t);
  bytes += p.logit_bias.size() * sizeof(p.logit_bias[0]);
  for (const std::vector<int32_t>& word : p.bad_words) bytes += sizeof word + 4 * word.size();
  return bytes;
}

std::vector<int32_t> tokens_of(const Request& request, const Prompt& prompt,
                               const Tokenizer& tokenizer, int32_t longest) {
  const std::string* text = std::get_if<std::string>(&prompt);
  std::vector<int32_t> tokens =
      text ? tokenizer.encode(*text, {.add_special_tokens = request.add_special_tokens})
           : std::get<std::vector<int32_t>>(prompt);
  if (request.truncate_prompt_tokens == 0) return tokens;
  // An answer that may fill the context needs one token at least.
  const int32_t most = request.base.params.max_tokens;
  const int64_t fits = longest - (most < longest ? most : 1);
  const int64_t kept = request.truncate_prompt_tokens > 0 ? request.truncate_prompt_tokens : fits;
  if (std::ssize(tokens) > kept) tokens.erase(tokens.begin(), tokens.end() - kept);
  return tokens;
}

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

}  // namespace

Request parse_request(const json::Value& body, Endpoint endpoint, const Context& context) {
  if (body.is_object() && body.as_object().size() > kMaxFields)
    fail_usage("expected at most {} fields in the body, found {}", kMaxFields,
               body.as_object().size());
  if (body.is_object() && endpoint != Endpoint::completions) check_conversation(body, context);
  if (endpoint == Endpoint::messages) {
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
  return Reader(body, context).read(endpoint);
}

}  // namespace invar::openai
