#include "frontend/chat_template.h"

#include <filesystem>

#include "base/ends.h"
#include "base/error.h"
#include "base/input_file.h"
#include "frontend/chat_message.h"

namespace invar {

namespace {

std::string optional_text(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? read_whole_file(path) : "";
}

// Adds the members like "bos_token": "<s>" or {"content": "<s>"}; later ones replace earlier ones.
void read_special_tokens(const json::Value& config, jinja::Variables& tokens) {
  if (!config.is_object()) return;
  for (const auto& [key, value] : config.as_object()) {
    const json::Value* content = value.is_object() ? value.find("content") : &value;
    if (!key.ends_with("_token") || !content || !content->is_string()) continue;
    std::erase_if(tokens, [&name = key](const auto& token) { return token.first == name; });
    tokens.emplace_back(key, content->as_string());
  }
}

// Stands at the end of the last message's content, where the text is cut. The space behind it is
// gone where the template trims contents.
constexpr std::string_view kEndOfMessage = "<<<the end of the final message>>> ";

void mark_end(json::Value& message) {
  json::Value* text = nullptr;  // where the content ends
  for (auto& [key, value] : message.as_object())
    if (key == "content") text = &value;
  if (text && text->is_array() && !text->as_array().empty()) {
    json::Value& part = last_of(text->as_array());
    text = nullptr;
    if (part.is_object())
      for (auto& [key, value] : part.as_object())
        if (key == "text") text = &value;
  }
  if (!text || !text->is_string())
    fail_usage("continue_final_message needs a last message whose content is text, found {}",
               json::excerpt(message));
  *text = text->as_string() + std::string(kEndOfMessage);
}

// Whether the answer that is to go on was left out: some templates take none without words.
bool is_left_out(const json::Value& messages, const json::Array& shown) {
  return is_role(last_of(messages.as_array()), "assistant") &&
         (shown.empty() || !is_role(last_of(shown), "assistant"));
}

// `text` up to the mark, trimmed there where the template trims.
std::string cut_at_mark(const std::string& text) {
  const size_t at = text.rfind(kEndOfMessage.substr(0, kEndOfMessage.size() - 1));
  if (at == text.npos)
    fail_usage("continue_final_message needs a chat template that shows the last message");
  const bool trims = text.compare(at, kEndOfMessage.size(), kEndOfMessage) != 0;
  const std::string kept = text.substr(0, at);
  return trims ? kept.substr(0, kept.find_last_not_of(" \t\r\n") + 1) : kept;
}

}  // namespace

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

std::tm utc_time(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm utc{};
  gmtime_r(&time, &utc);
  return utc;
}

ChatTemplate ChatTemplate::load(const std::string& directory) {
  return from_texts({optional_text(directory + "/chat_template.jinja"),
                     optional_text(directory + "/tokenizer_config.json"),
                     optional_text(directory + "/special_tokens_map.json"), ""},
                    directory);
}

ChatTemplate ChatTemplate::from_texts(const ChatTemplateTexts& texts, const std::string& name) {
  ChatTemplate chat;
  const std::string config_name = name + "/tokenizer_config.json";
  json::Value config;
  if (!texts.special_tokens_map_json.empty())
    read_special_tokens(
        json::parse(texts.special_tokens_map_json, name + "/special_tokens_map.json"),
        chat.special_tokens_);
  if (!texts.tokenizer_config_json.empty()) {
    config = json::parse(texts.tokenizer_config_json, config_name);
    read_special_tokens(config, chat.special_tokens_);
  }
  const json::Value* source = config.find("chat_template");
  const auto add = [&](const std::string& variant, const std::string& text, std::string where) {
    jinja::Template program(text, std::move(where));
    const TemplateTraits traits = traits_of(program, text, chat.special_tokens_);
    chat.templates_.push_back({variant, text, std::move(program), traits});
  };
  chat.where_ = config_name;
  if (!texts.chat_template_jinja.empty()) {
    chat.where_ = texts.jinja_name.empty() ? name + "/chat_template.jinja" : texts.jinja_name;
    add("default", texts.chat_template_jinja, chat.where_);
  } else if (source && source->is_string()) {
    add("default", source->as_string(), config_name + ": chat_template");
  } else if (source && source->is_array()) {
    for (const json::Value& one : source->as_array()) {
      const json::Value *variant = one.find("name"), *text = one.find("template");
      if (!variant || !text || !variant->is_string() || !text->is_string())
        fail("{}: expected objects with \"name\" and \"template\" in chat_template, found {}",
             config_name, json::excerpt(one));
      add(variant->as_string(), text->as_string(),
          config_name + ": chat_template " + json::quoted(variant->as_string()));
    }
  } else {
    fail(
        "{}: the model has no chat template, neither chat_template.jinja nor chat_template in "
        "tokenizer_config.json",
        name);
  }
  chat.choose(false);
  chat.is_of_pairs_ = chat.shows_pairs();
  return chat;
}

const ChatTemplate::Named& ChatTemplate::choose(bool has_tools) const {
  const Named* chosen = nullptr;
  for (const Named& one : templates_)
    if (one.name == "tool_use" ? has_tools : one.name == "default" && !chosen) chosen = &one;
  if (!chosen) fail("{}: expected a chat template with the name \"default\"", where_);
  return *chosen;
}

ToolFormat ChatTemplate::tool_format() const {
  const Named& chosen = choose(true);
  const bool is_generic = chosen.traits.format == ToolFormat::none && !chosen.traits.shows_tools;
  return is_generic ? ToolFormat::tagged : tool_format_of(chosen.source);
}

std::string ChatTemplate::render_pair(const std::string& query, const std::string& document,
                                      const std::string& instruction,
                                      const std::function<std::tm()>& clock) const {
  json::Array messages;
  if (!instruction.empty())
    messages.push_back(json::Object{{"role", "system"}, {"content", instruction}});
  messages.push_back(json::Object{{"role", "query"}, {"content", query}});
  messages.push_back(json::Object{{"role", "document"}, {"content", document}});
  return render_plain(std::move(messages), clock);
}

bool ChatTemplate::shows_pairs() const {
  constexpr std::string_view kQuery = "7d1fq", kDocument = "7d1fd", kUser = "7d1fu";
  const auto shows = [](const std::string& text, std::string_view mark) {
    return text.find(mark) != text.npos;
  };
  try {
    const std::string pair =
        render_pair(std::string(kQuery), std::string(kDocument), "", local_time);
    if (!shows(pair, kQuery) || !shows(pair, kDocument)) return false;
    const json::Value user = json::Object{{"role", "user"}, {"content", kUser}};
    return !shows(render_plain(json::Array{user}, local_time), kUser);
  } catch (const Error&) {
    return false;
  }
}

std::string ChatTemplate::render_plain(json::Array messages,
                                       const std::function<std::tm()>& clock) const {
  jinja::Variables variables = special_tokens_;
  variables.emplace_back("messages", jinja::Value::from_json(std::move(messages)));
  variables.emplace_back("add_generation_prompt", true);
  return choose(false).program.render(variables, {.clock = clock});
}

const ChatTemplate::Named& ChatTemplate::chosen_for(const Conversation& conversation) const {
  const json::Value& tools = conversation.tools;
  return choose(tools.is_array() && !tools.as_array().empty());
}

NormalConversation ChatTemplate::normal(const Conversation& conversation) const {
  return normal_form(conversation.messages, conversation.tools, chosen_for(conversation).traits);
}

std::string ChatTemplate::render(const Conversation& conversation,
                                 const std::function<std::tm()>& clock) const {
  return render(conversation, normal(conversation), clock);
}

std::string ChatTemplate::render(const Conversation& conversation, NormalConversation normal,
                                 const std::function<std::tm()>& clock) const {
  const Named& chosen = chosen_for(conversation);
  jinja::Variables variables = special_tokens_;
  const auto set = [&](const std::string& name, jinja::Value value) {
    std::erase_if(variables, [&](const auto& variable) { return variable.first == name; });
    variables.emplace_back(name, std::move(value));
  };
  for (const auto& [name, value] : conversation.variables)
    set(name, jinja::Value::from_json(value));
  if (conversation.continue_final_message) {
    if (is_left_out(conversation.messages, normal.messages))
      fail_usage(
          "expected words in the last message, with which the answer goes on, since the template "
          "takes no answer without them, found none");
    mark_end(last_of(normal.messages));
  }
  set("messages", jinja::Value::from_json(std::move(normal.messages)));
  const bool is_list = normal.tools.is_null() && chosen.traits.lists_no_tools;
  set("tools", is_list ? jinja::Value::list({}) : jinja::Value::from_json(normal.tools));
  set("documents", nullptr);
  set("add_generation_prompt", conversation.add_generation_prompt);
  std::string text = chosen.program.render(variables, {.clock = clock});
  return conversation.continue_final_message ? cut_at_mark(text) : text;
}

}  // namespace invar
