#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/anthropic.h"
#include "frontend/foreign_fields.h"

namespace invar::anthropic {

namespace {

using openai::ForeignField;
using openai::RequestWarnings;

constexpr ForeignField kRefused[] = {
    {"container", ""},
    {"mcp_servers", "[]"},
    {"n", "1", "a message is one answer"},
    {"logprobs", "false|0", "a message has none: ask /v1/chat/completions"},
    {"top_logprobs", "0", "a message has none: ask /v1/chat/completions"},
    {"prompt_logprobs", "", "a message has none: ask /v1/chat/completions"},
    {"return_token_ids", "false", "a message has none: ask /v1/chat/completions"},
    {"echo", "false"},
};

const json::Value& member(const json::Value& object, const char* name) {
  const json::Value* value = object.find(name);
  if (!value || value->is_null()) fail_usage("expected {} in {}", name, json::excerpt(object));
  return *value;
}

std::string type_of(const json::Value& block) {
  const json::Value* type = block.find("type");
  return type && type->is_string() ? type->as_string() : "";
}

std::string name_of(const json::Value& value) {
  const json::Value* name = value.find("name");
  return name && name->is_string() ? json::quoted(name->as_string()) : "";
}

json::Value text_part(const std::string& text) {
  return json::Object{{"type", "text"}, {"text", text}};
}

// The conversation of a body. Blocks that the server has no use for are left out with a warning.
class Conversation {
 public:
  Conversation(const ThoughtSeal* seal, RequestWarnings& warnings)
      : seal_(seal), warnings_(warnings) {}

  json::Array messages_of(const json::Value& body) {
    const json::Value* system = body.find("system");
    if (system && !system->is_null())
      messages_.push_back(
          json::Object{{"role", "system"}, {"content", text_content(*system, "system")}});
    const json::Value* given = body.find("messages");
    if (!given || !given->is_array())
      fail_usage("expected \"messages\" as a list, found {}", given ? given->type_name() : "none");
    if (given->as_array().empty()) fail_usage("expected at least one message, found none");
    size_t before = 0;  // messages that the last one does not make
    for (const json::Value& message : given->as_array()) {
      before = messages_.size();
      add_message(message);
    }
    if (messages_.size() == before)
      fail_usage("expected words in the last message, found blocks that are left out alone");
    return std::move(messages_);
  }

 private:
  // The text of a block that is one, or stands for one.
  std::optional<std::string> text_of(const json::Value& block) const {
    const std::string type = type_of(block);
    if (type == "search_result") return result_text(block);
    if (type == "tool_reference") return "The tool " + name_in(block, "tool_name") + " is loaded.";
    const json::Value* source = type == "document" ? block.find("source") : nullptr;
    if (type != "text" && (!source || type_of(*source) != "text")) return std::nullopt;
    const json::Value& text = source ? member(*source, "data") : member(block, "text");
    if (!text.is_string()) fail_usage("expected text in a block, found {}", text.type_name());
    return text.as_string();
  }

  // A search result becomes its title, its source and its words.
  std::string result_text(const json::Value& block) const {
    std::string text = name_in(block, "title") + "\n" + name_in(block, "source");
    const json::Value& content = member(block, "content");
    if (!content.is_array())
      fail_usage("expected the content of a search_result as blocks, found {}",
                 content.type_name());
    for (const json::Value& one : content.as_array()) {
      const json::Value& words = member(one, "text");
      if (!words.is_string()) fail_usage("expected text in a block, found {}", words.type_name());
      text += "\n" + words.as_string();
    }
    return text;
  }

  static std::string name_in(const json::Value& block, const char* key) {
    const json::Value& name = member(block, key);
    if (!name.is_string()) fail_usage("expected {} as a text, found {}", key, name.type_name());
    return name.as_string();
  }

  // Text, or blocks of it, as the content of a chat's message.
  json::Value text_content(const json::Value& content, const char* where) const {
    if (content.is_string()) return content;
    if (!content.is_array())
      fail_usage("expected {} as text or blocks, found {}", where, content.type_name());
    json::Array parts;
    for (const json::Value& block : content.as_array()) {
      const auto text = text_of(block);
      if (!text)
        fail_usage("expected blocks of type text in {}, found {}", where, json::excerpt(block));
      parts.push_back(text_part(*text));
    }
    if (parts.empty()) return "";
    return parts.size() == 1 ? member(first_of(parts), "text") : json::Value(std::move(parts));
  }

  // The thought of a block of type thinking, where the server signed it.
  std::string thought_of(const json::Value& block) {
    const json::Value& thought = member(block, "thinking");
    const json::Value* signature = block.find("signature");
    if (!thought.is_string() || (signature && !signature->is_string() && !signature->is_null()))
      fail_usage("expected thinking and signature as texts, found {}", json::excerpt(block));
    if (seal_ && signature && signature->is_string() &&
        seal_->signs(thought.as_string(), signature->as_string()))
      return thought.as_string();
    warnings_.add("a thinking block is left out: its signature is not this server's");
    return "";
  }

  // A template shows nothing that a service ran for the model, or closed.
  bool is_left_out(const std::string& type) {
    const bool is_run =
        type == "server_tool_use" || type == "mcp_tool_use" || type.ends_with("_tool_result");
    if (!is_run && type != "redacted_thinking" && type != "compaction") return false;
    warnings_.add("blocks of type " + type + " are left out");
    return true;
  }

  // A call; one that was cut may have no input.
  static json::Value call_of(const json::Value& block) {
    const json::Value* input = block.find("input");
    const bool has_input = input && !input->is_null();
    return json::Object{
        {"id", member(block, "id")},
        {"type", "function"},
        {"function", json::Object{{"name", member(block, "name")},
                                  {"arguments", has_input ? json::dump(*input) : "{}"}}}};
  }

  // Thoughts, texts and calls: what the model wrote, so nothing stands between the texts.
  json::Value assistant_message(const json::Array& blocks) {
    std::string text, thought;
    json::Array calls;
    for (const json::Value& block : blocks) {
      const std::string type = type_of(block);
      if (type == "text") {
        text += *text_of(block);
      } else if (type == "thinking") {
        thought += thought_of(block);
      } else if (type == "tool_use") {
        calls.push_back(call_of(block));
      } else if (!is_left_out(type)) {
        fail_usage(
            "expected blocks of type thinking, text or tool_use from the assistant, found {}",
            json::excerpt(block));
      }
    }
    json::Value message = json::Object{{"role", "assistant"}, {"content", text}};
    if (!thought.empty()) message.set("reasoning_content", thought);
    if (!calls.empty()) message.set("tool_calls", std::move(calls));
    return message;
  }

  // A user's blocks: each result of a tool is a message of its own, texts between them another.
  void add_user_blocks(const json::Array& blocks) {
    if (blocks.empty()) fail_usage("expected at least one block in a user's message, found none");
    json::Array texts;
    const auto flush = [&] {
      if (texts.empty()) return;
      messages_.push_back(json::Object{
          {"role", "user"}, {"content", text_content(std::exchange(texts, {}), "text")}});
    };
    for (const json::Value& block : blocks) {
      const std::string type = type_of(block);
      if (type == "tool_result") {
        flush();
        add_result(block);
      } else if (text_of(block)) {
        texts.push_back(block);
      } else if (!is_left_out(type)) {
        fail_usage("expected blocks of type text or tool_result from the user, found {}",
                   json::excerpt(block));
      }
    }
    flush();
  }

  void add_result(const json::Value& block) {
    const json::Value* content = block.find("content");
    messages_.push_back(json::Object{
        {"role", "tool"},
        {"tool_call_id", member(block, "tool_use_id")},
        {"content", content && !content->is_null() ? text_content(*content, "a tool_result")
                                                   : json::Value("")}});
  }

  void add_message(const json::Value& message) {
    const json::Value& role = member(message, "role");
    const json::Value* given = message.find("content");
    const json::Value content = given && !given->is_null() ? *given : json::Value("");
    const bool is_user = role == json::Value("user");
    const bool is_system = role == json::Value("system");
    if (!is_user && !is_system && role != json::Value("assistant"))
      fail_usage("expected the role of a message as user, assistant or system, found {}",
                 json::excerpt(role));
    if (!content.is_string() && !content.is_array())
      fail_usage("expected the content of a message as text or blocks, found {}",
                 content.type_name());
    if (content.is_string() || is_system)
      messages_.push_back(
          json::Object{{"role", role}, {"content", text_content(content, "a message")}});
    else if (is_user)
      add_user_blocks(content.as_array());
    else
      messages_.push_back(assistant_message(content.as_array()));
  }

  const ThoughtSeal* seal_;
  RequestWarnings& warnings_;
  json::Array messages_;
};

// A tool that a service would run, or whose schema it alone knows, is left out.
bool is_of_service(const json::Value& tool) {
  const std::string type = type_of(tool);
  return !type.empty() && type != "custom";
}

json::Array tools_of(const json::Value& tools, RequestWarnings& warnings) {
  if (!tools.is_array()) fail_usage("expected tools as a list, found {}", tools.type_name());
  json::Array all;
  for (const json::Value& tool : tools.as_array()) {
    if (!tool.is_object())
      fail_usage("expected tools with a name and an input_schema, found {}", json::excerpt(tool));
    if (is_of_service(tool)) {
      warnings.add(fmt::format("the tool {} of type {} is left out", name_of(tool), type_of(tool)));
      continue;
    }
    json::Value function = json::Object{{"name", member(tool, "name")}};
    if (const json::Value* text = tool.find("description"); text && !text->is_null())
      function.set("description", *text);
    function.set("parameters", member(tool, "input_schema"));
    if (const json::Value* strict = tool.find("strict")) function.set("strict", *strict);
    all.push_back(json::Object{{"type", "function"}, {"function", std::move(function)}});
  }
  return all;
}

json::Value choice_of(const json::Value& choice) {
  const std::string type = type_of(choice);
  if (type == "auto" || type == "none") return type;
  if (type == "any") return "required";
  if (type != "tool")
    fail_usage("expected a tool_choice of type auto, any, tool or none, found {}",
               json::excerpt(choice));
  return json::Object{{"type", "function"},
                      {"function", json::Object{{"name", member(choice, "name")}}}};
}

// True where every sent tool that a choice allows was left out.
bool lost_its_tools(const json::Value& choice, const json::Array& sent) {
  const std::string type = type_of(choice);
  if (type != "any" && type != "tool") return false;
  const auto may_be = [&](const json::Value& tool) {
    const json::Value *name = tool.find("name"), *wanted = choice.find("name");
    return type == "any" || (name && wanted && *name == *wanted);
  };
  return std::ranges::any_of(sent, may_be) &&
         std::ranges::none_of(
             sent, [&](const json::Value& tool) { return may_be(tool) && !is_of_service(tool); });
}

// `tools`: as they were sent.
void set_choice(const json::Value& choice, const json::Value* tools, json::Value& chat,
                RequestWarnings& warnings) {
  if (tools && tools->is_array() && lost_its_tools(choice, tools->as_array()))
    warnings.add("tool_choice is ignored: its tool is left out");
  else
    chat.set("tool_choice", choice_of(choice));
  const json::Value* one = choice.find("disable_parallel_tool_use");
  if (!one || one->is_null()) return;
  if (!one->is_bool())
    fail_usage("expected disable_parallel_tool_use as true or false, found {}", one->type_name());
  chat.set("parallel_tool_calls", !one->as_bool());
}

// {"type": "json_schema", "schema": {...}}
json::Value format_of(const json::Value& format) {
  if (type_of(format) != "json_schema")
    fail_usage("expected a format of type json_schema, found {}", json::excerpt(format));
  return json::Object{{"type", "json_schema"},
                      {"json_schema", json::Object{{"schema", member(format, "schema")}}}};
}

void set_output(const json::Value& config, json::Value& chat, RequestWarnings& warnings) {
  for (const auto& [key, value] : config.as_object()) {
    if (value.is_null()) continue;
    if (key == "format")
      chat.set("response_format", format_of(value));
    else if (key == "effort")
      chat.set("reasoning_effort", value);
    else
      warnings.add(fmt::format("{} of output_config is ignored", json::quoted(key)));
  }
}

// Edits that keep everything are none; the server makes no others.
void check_edits(const json::Value& management, RequestWarnings& warnings) {
  const json::Value* edits = management.find("edits");
  if (!management.is_object() || (edits && !edits->is_array() && !edits->is_null()))
    fail_usage("expected context_management with a list of edits, found {}",
               json::excerpt(management));
  for (const json::Value& edit : edits && edits->is_array() ? edits->as_array() : json::Array()) {
    const json::Value* keep = edit.find("keep");
    if (keep && *keep == json::Value("all")) continue;
    warnings.add(
        fmt::format("the edit {} of context_management is not made", json::quoted(type_of(edit))));
  }
}

// A field that a chat completion names otherwise or does not have. False: it has the same.
bool translate(const std::string& key, const json::Value& value, json::Value& chat,
               RequestWarnings& warnings) {
  if (key == "messages" || key == "system" || key == "metadata" || key == "service_tier" ||
      key == "cache_control" || find_field(kRefused, key))
    return true;
  if (key == "stop_sequences")
    chat.set("stop", value);
  else if (key == "tools" && value.is_array() && value.as_array().empty())
    return true;
  else if (key == "tools")
    chat.set(key, tools_of(value, warnings));
  else if (key == "context_management")
    check_edits(value, warnings);
  else if (key == "tool_choice")
    return true;  // it is read behind the tools
  else if (key == "output_format")
    chat.set("response_format", format_of(value));
  else if (key == "output_config" && value.is_object())
    set_output(value, chat, warnings);
  else if (key == "output_config")
    fail_usage("the field {} is not supported: found {}", json::quoted(key), json::excerpt(value));
  else
    return false;
  return true;
}

// An answer that has been begun with nothing.
bool is_begun_without_words(const json::Value& message) {
  return member(message, "role") == json::Value("assistant") && !message.find("tool_calls") &&
         !message.find("reasoning_content") && member(message, "content") == json::Value("");
}

}  // namespace

json::Value chat_body_of(const json::Value& body, const ThoughtSeal* seal,
                         RequestWarnings& warnings) {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  refuse_fields(body, kRefused);
  const json::Value* most = body.find("max_tokens");
  if (!most || most->is_null()) fail_usage("expected \"max_tokens\" in the body");
  json::Array messages = Conversation(seal, warnings).messages_of(body);
  if (is_begun_without_words(last_of(messages)) && messages.size() > 1) messages.pop_back();
  const json::Value& last = last_of(messages);
  const bool goes_on = member(last, "role") == json::Value("assistant");
  if (goes_on && last.find("tool_calls"))
    fail_usage("expected the results of the last message's calls behind it, found none");
  json::Value chat = json::Object{{"messages", std::move(messages)}};
  for (const auto& [key, value] : body.as_object())
    if (!value.is_null() && !translate(key, value, chat, warnings)) chat.set(key, value);
  if (const json::Value* choice = body.find("tool_choice"); choice && !choice->is_null())
    set_choice(*choice, body.find("tools"), chat, warnings);
  if (goes_on) chat.set("continue_final_message", true);
  return chat;
}

}  // namespace invar::anthropic
