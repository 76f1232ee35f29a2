// The prompts of a request: texts and token ids of a completion, the conversation of a chat.
#include "frontend/openai_prompt.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/fill_in_middle.h"
#include "frontend/request_limits.h"

namespace invar::openai {

namespace {

constexpr std::string_view kRoles[] = {"system",    "developer", "user",
                                       "assistant", "tool",      "function"};

void check_size(const BodyFields& fields, const Context& context, const std::string& prompt) {
  const bool is_cut = fields.find("truncate_prompt_tokens");
  const size_t most = is_cut ? most_text(context) : context.max_prompt_bytes;
  if (prompt.size() > most && is_cut)
    throw PromptTooLong(
        fmt::format("expected a prompt of at most {} bytes, of which truncate_prompt_tokens keeps "
                    "the end, found {}",
                    most, prompt.size()));
  if (prompt.size() > most)
    throw PromptTooLong(
        fmt::format("the prompt has {} bytes: more than {} do not fit into the context, however "
                    "they are cut into tokens",
                    prompt.size(), context.max_prompt_bytes));
}

// A template would write any word into the place that tells the model who speaks.
void check_role(const json::Value* role) {
  if (!role || !role->is_string() || among(role->as_string(), kRoles)) return;
  fail_usage(
      "expected the role of a message as system, developer, user, assistant, tool or function, "
      "found {}",
      json::quoted(role->as_string()));
}

// A text whose middle is asked for: what stands before it, and behind it.
Prompt read_middle(const BodyFields& fields, const Context& context, const json::Value& prompt,
                   const std::string& suffix) {
  if (fields.read_flag("echo", false)) fail_usage("expected no echo beside suffix, found true");
  const std::string& prefix = text_of(prompt, "prompt");
  const json::Value ids = middle_prompt(context, {.prefix = prefix, .suffix = suffix});
  return token_ids_of(ids, "token ids in prompt", context.vocab);
}

Prompt read_prompt(const BodyFields& fields, const Context& context, const json::Value& prompt) {
  if (prompt.is_string()) {
    check_size(fields, context, prompt.as_string());
    return prompt.as_string();
  }
  if (prompt.is_array()) return token_ids_of(prompt, "token ids in prompt", context.vocab);
  fail_usage("expected a prompt of text or token ids, found {}", prompt.type_name());
}

std::string rendered(const Conversation& conversation, const Context& context, Request& request) {
  NormalConversation normal = context.chat->normal(conversation);
  json::Value shown;
  if (context.shows_conversation) {
    shown = json::Object{{"messages", normal.messages}, {"tools", normal.tools}};
    shown.set("changes", json::Array(normal.changes.begin(), normal.changes.end()));
  }
  std::string text = context.chat->render(conversation, std::move(normal), context.clock);
  if (context.shows_conversation) shown.set("prompt", text);
  request.conversation = std::move(shown);
  return text;
}

std::string rendered(const BodyFields& fields, const Context& context, Request& request) {
  const json::Value* messages = fields.find("messages");
  if (!messages) fail_usage("expected \"messages\" in \"body\"");
  if (!context.chat) fail_usage("\"messages\" need a chat template; {}", context.no_chat);
  for (const json::Value& message : messages->is_array() ? messages->as_array() : json::Array())
    check_role(message.find("role"));
  const bool goes_on = request.goes_on;
  Conversation conversation{
      .messages = *messages,
      .add_generation_prompt = fields.read_flag("add_generation_prompt", !goes_on),
      .continue_final_message = goes_on};
  if (goes_on && conversation.add_generation_prompt)
    fail_usage("continue_final_message needs add_generation_prompt: false, found true");
  const json::Value* choice = fields.find("tool_choice");
  const json::Value* tools = fields.find("tools");
  if (tools && !(choice && *choice == json::Value("none"))) conversation.tools = *tools;
  if (const json::Value* variables = fields.find("chat_template_kwargs")) {
    if (!variables->is_object())
      fail_usage("expected chat_template_kwargs as an object, found {}", variables->type_name());
    if (const size_t bytes = json::dump(*variables).size(); bytes > kMaxTemplateVariablesBytes)
      fail_usage("expected chat_template_kwargs of at most {} bytes, found {}",
                 kMaxTemplateVariablesBytes, bytes);
    conversation.variables = variables->as_object();
  }
  set_variables(request.thoughts, conversation.variables);
  return rendered(conversation, context, request);
}

}  // namespace

size_t most_text(const Context& context) {
  return std::max(context.max_prompt_bytes, kMaxTextBytes);
}

void read_prompts(const BodyFields& fields, const Context& context, Request& request) {
  const json::Value* prompt = fields.find("prompt");
  if (!prompt) fail_usage("expected \"prompt\" in \"body\"");
  if (const json::Value* suffix = fields.find("suffix"); suffix && *suffix != json::Value(""))
    return request.prompts.push_back(
        read_middle(fields, context, *prompt, text_of(*suffix, "suffix")));
  const bool many = prompt->is_array() && !prompt->as_array().empty() &&
                    !first_of(prompt->as_array()).is_number();
  if (!many) return request.prompts.push_back(read_prompt(fields, context, *prompt));
  for (const json::Value& one : list_of(*prompt, "prompts", kMaxPrompts))
    request.prompts.push_back(read_prompt(fields, context, one));
}

void read_conversation(const BodyFields& fields, const Context& context, Request& request) {
  request.prompts.emplace_back();
  if (!context.renders) return;
  last_of(request.prompts) = within("messages", [&] { return rendered(fields, context, request); });
  check_size(fields, context, std::get<std::string>(last_of(request.prompts)));
}

int32_t read_truncation(const BodyFields& fields) {
  int32_t kept = 0;
  fields.read_integer("truncate_prompt_tokens", kept, -1);
  if (kept == 0 && fields.find("truncate_prompt_tokens"))
    fail_usage("expected truncate_prompt_tokens as -1 or at least 1, found 0");
  return kept;
}

void read_prediction(const BodyFields& fields, const Context& context, Request& request) {
  const json::Value* prediction = fields.find("prediction");
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
  if (all.size() > context.max_prompt_bytes)
    fail_usage("expected a prediction of at most {} bytes, found {}", context.max_prompt_bytes,
               all.size());
  request.base.prediction =
      context.tokenizer->encode(all, {.add_special_tokens = false, .parse_special = false});
}

}  // namespace invar::openai
