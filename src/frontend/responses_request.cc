#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/body_fields.h"
#include "frontend/foreign_fields.h"
#include "frontend/responses.h"

namespace invar::openai {

namespace {

constexpr ForeignField kRefused[] = {
    {"conversation", "", "ask for \"previous_response_id\""},
    {"max_tool_calls", ""},
    {"n", "1", "a response is one answer"},
    {"prompt", "", "give \"input\""},
    {"top_logprobs", "0", "a response has none: ask /v1/chat/completions"},
};

std::string text_in(const json::Value& object, const char* name) {
  const json::Value* text = object.find(name);
  return text && text->is_string() ? text->as_string() : "";
}

// The content of an item of "input": a text, or parts of text.
json::Value content_of(const json::Value& content) {
  if (content.is_null()) return "";
  if (!content.is_array()) return content;
  json::Array parts;
  for (const json::Value& part : content.as_array()) {
    const std::string type = text_in(part, "type");
    const bool is_refusal = type == "refusal";
    const json::Value* text = part.find(is_refusal ? "refusal" : "text");
    if (!text || !(is_refusal || type == "input_text" || type == "output_text" || type == "text"))
      fail_usage("expected parts of type input_text or output_text, found {}", json::excerpt(part));
    parts.push_back(json::Object{{"type", "text"}, {"text", *text}});
  }
  return parts;
}

// A message of which only the thought has come.
bool waits_for_words(const json::Value& message) {
  const json::Value* content = message.find("content");
  return message.find("reasoning_content") && !message.find("tool_calls") && content &&
         *content == json::Value("");
}

// The messages that the items of an input are.
class Items {
 public:
  Items(const ThoughtSeal* seal, RequestWarnings& warnings) : seal_(seal), warnings_(warnings) {}

  void add(const json::Value& item) {
    const std::string type = text_in(item, "type");
    if (type == "reasoning") return add_thought(item);
    if (type.ends_with("_call") && item.find("call_id")) return add_call(item, type);
    if (type.ends_with("_call_output")) return add_output(item);
    const json::Value* role = item.find("role");
    const json::Value* content = item.find("content");
    const bool is_message = (type.empty() || type == "message") && role;
    if (is_message) return add_message(*role, content ? *content : json::Value());
    if (type.empty() || type == "message" || type == "item_reference" || type == "function_call")
      fail_usage(
          "expected messages with a role, thoughts, or calls and their outputs, as input, found {}",
          json::excerpt(item));
    warnings_.add("items of type " + type + " are left out");
  }

  json::Array take() { return std::move(messages_); }
  void add_instructions(const json::Value& text) {
    messages_.push_back(json::Object{{"role", "system"}, {"content", text}});
  }

 private:
  void add_message(const json::Value& role, const json::Value& content) {
    if (role == json::Value("assistant") && !messages_.empty() &&
        waits_for_words(last_of(messages_)))
      return last_of(messages_).set("content", content_of(content));
    messages_.push_back(json::Object{{"role", role}, {"content", content_of(content)}});
  }

  // What was thought before the next message or call of the assistant.
  void add_thought(const json::Value& item) {
    const json::Value* closed = item.find("encrypted_content");
    std::optional<std::string> thought;
    if (closed && closed->is_string())
      thought = seal_ ? seal_->open(closed->as_string()) : std::nullopt;
    else
      thought = open_thought(item);
    if (!thought) return warnings_.add("a reasoning item is left out: another server closed it");
    messages_.push_back(
        json::Object{{"role", "assistant"}, {"content", ""}, {"reasoning_content", *thought}});
  }

  static std::string open_thought(const json::Value& item) {
    const json::Value* content = item.find("content");
    if (!content || !content->is_array() || content->as_array().empty())
      content = item.find("summary");
    std::string thought;
    for (const json::Value& part :
         content && content->is_array() ? content->as_array() : json::Array()) {
      const json::Value* text = part.find("text");
      if (!text || !text->is_string())
        fail_usage("expected parts with a text in a reasoning item, found {}", json::excerpt(part));
      thought += text->as_string();
    }
    return thought;
  }

  // What a call was, in the message of the one who called: of a function, of a custom tool, or of a
  // tool of the client's, such as local_shell_call, whose name is its type's.
  void add_call(const json::Value& item, const std::string& type) {
    const bool is_function = type == "function_call" || type == "custom_tool_call";
    const json::Value name = is_function ? text_in(item, "name") : type.substr(0, type.size() - 5);
    json::Value arguments;
    if (const json::Value* text = item.find("arguments"))
      arguments = *text;
    else if (const json::Value* input = item.find("input"))
      arguments = json::dump(json::Object{{"input", *input}});
    else
      for (const char* key : {"action", "operation"})
        if (const json::Value* what = item.find(key)) arguments = json::dump(*what);
    if (arguments.is_null()) arguments = "{}";
    if (name == json::Value("")) fail_usage("expected call_id and name in {}", json::excerpt(item));
    const bool goes_on = !messages_.empty() && (last_of(messages_).find("tool_calls") ||
                                                waits_for_words(last_of(messages_)));
    if (!goes_on) messages_.push_back(json::Object{{"role", "assistant"}, {"content", ""}});
    json::Value& message = last_of(messages_);
    const json::Value* before = message.find("tool_calls");
    json::Array calls = before ? before->as_array() : json::Array();
    calls.push_back(
        json::Object{{"id", *item.find("call_id")},
                     {"type", "function"},
                     {"function", json::Object{{"name", name}, {"arguments", arguments}}}});
    message.set("tool_calls", std::move(calls));
  }

  void add_output(const json::Value& item) {
    const json::Value* id = item.find("call_id");
    const json::Value* output = item.find("output");
    if (!id || !output) fail_usage("expected call_id and output in {}", json::excerpt(item));
    const json::Value content =
        output->is_object() ? json::Value(json::dump(*output)) : content_of(*output);
    messages_.push_back(
        json::Object{{"role", "tool"}, {"tool_call_id", *id}, {"content", content}});
  }

  const ThoughtSeal* seal_;
  RequestWarnings& warnings_;
  json::Array messages_;
};

json::Array messages_of(const json::Value& body, const json::Array* earlier,
                        const ThoughtSeal* seal, RequestWarnings& warnings) {
  Items items(seal, warnings);
  const json::Value* instructions = body.find("instructions");
  if (instructions && !instructions->is_null()) items.add_instructions(*instructions);
  if (earlier)
    for (const json::Value& item : *earlier) items.add(item);
  for (const json::Value& item : input_items(body)) items.add(item);
  return items.take();
}

// Tools as chat completions have them.
class Tools {
 public:
  explicit Tools(RequestWarnings& warnings) : warnings_(warnings) {}

  void add(const json::Value& tools) {
    if (!tools.is_array()) fail_usage("expected tools as a list, found {}", tools.type_name());
    for (const json::Value& tool : tools.as_array()) add_tool(tool);
  }

  json::Array all;

 private:
  // Those that a service would run are left out; a namespace's are as any others.
  void add_tool(const json::Value& tool) {
    const std::string type = text_in(tool, "type");
    const json::Value* name = tool.find("name");
    const json::Value* inner = tool.find("tools");
    if (type.empty() || ((type == "function" || type == "custom") && !name))
      fail_usage("expected tools of type function with a name, found {}", json::excerpt(tool));
    if (type == "namespace" && inner) return add(*inner);
    if (type == "function") return add_function(tool);
    if (type == "custom") return add_custom(tool, *name);
    warnings_.add("tools of type " + type + " are left out");
  }

  void add_function(const json::Value& tool) {
    json::Value function = json::Object();
    for (const auto& [key, value] : tool.as_object())
      if (key != "type" && !value.is_null()) function.set(key, value);
    all.push_back(json::Object{{"type", "function"}, {"function", std::move(function)}});
  }

  // A function of one text.
  void add_custom(const json::Value& tool, const json::Value& name) {
    json::Value input = json::Object{{"type", "string"}};
    if (const json::Value* format = tool.find("format"); format && format->is_object()) {
      const std::string syntax = text_in(*format, "syntax");
      if (syntax == "regex")
        input.set("pattern", "^(" + text_in(*format, "definition") + ")$");
      else if (text_in(*format, "type") == "grammar")
        warnings_.add("the grammar of a custom tool is not held to");
    }
    json::Value function = json::Object{{"name", name}};
    if (const json::Value* text = tool.find("description"); text && !text->is_null())
      function.set("description", *text);
    function.set("parameters", json::Object{{"type", "object"},
                                            {"properties", json::Object{{"input", input}}},
                                            {"required", json::Array{"input"}}});
    all.push_back(json::Object{{"type", "function"}, {"function", std::move(function)}});
  }

  RequestWarnings& warnings_;
};

// {"format": {"type": "json_schema", "name": ..., "schema": {...}}}
void read_format(const json::Value& text, json::Value& chat, RequestWarnings& warnings) {
  const json::Value* verbosity = text.find("verbosity");
  if (verbosity && !verbosity->is_null() && *verbosity != json::Value("medium"))
    warnings.add("verbosity is ignored, since a template has no other than medium");
  const json::Value* format = text.find("format");
  const json::Value* schema = format ? format->find("schema") : nullptr;
  if (!format) return;
  if (schema)
    chat.set("response_format", json::Object{{"type", "json_schema"},
                                             {"json_schema", json::Object{{"schema", *schema}}}});
  else
    chat.set("response_format", *format);
}

// {"effort": ..., "summary": ...}
void read_effort(const json::Value& reasoning, json::Value& chat) {
  if (!reasoning.is_object())
    fail_usage("expected reasoning as an object, found {}", reasoning.type_name());
  for (const auto& [key, value] : reasoning.as_object()) {
    if (value.is_null()) continue;
    if (key == "effort")
      chat.set("reasoning_effort", value);
    else if (key != "summary" && key != "generate_summary")
      fail_usage("expected effort and summary in reasoning, found {}", json::quoted(key));
    else if (value != json::Value("auto") && value != json::Value("concise") &&
             value != json::Value("detailed"))
      fail_usage("expected a summary auto, concise or detailed, found {}", json::excerpt(value));
  }
}

void check_truncation(const json::Value& value) {
  if (value != json::Value("auto") && value != json::Value("disabled"))
    fail_usage("expected truncation auto or disabled, found {}", json::excerpt(value));
}

// The tools that {"type": "allowed_tools", "mode": ..., "tools": [...]} names.
json::Value allowed_tools(const json::Value& tools, const json::Value& choice) {
  const json::Value* named = choice.find("tools");
  if (!named || !named->is_array())
    fail_usage("expected tools as a list in {}", json::excerpt(choice));
  json::Array allowed;
  for (const json::Value& tool : tools.as_array())
    if (std::ranges::any_of(named->as_array(), [&](const json::Value& one) {
          const std::string name = text_in(one, "name");
          return !name.empty() && name == text_in(*tool.find("function"), "name");
        }))
      allowed.push_back(tool);
  return allowed;
}

// A tool that a service would run.
bool is_of_service(const json::Value& tool) {
  const std::string type = text_in(tool, "type");
  return !type.empty() && type != "function" && type != "custom" && type != "namespace";
}

// As a chat completion has it: "auto" and its like, or a function.
json::Value choice_of(const json::Value& given, json::Value& chat) {
  const std::string type = text_in(given, "type");
  json::Value choice = given;
  if (type == "custom") choice.set("type", "function");
  if (type != "allowed_tools") return choice;
  const std::string mode = text_in(given, "mode");
  if (mode != "auto" && mode != "required")
    fail_usage("expected a mode auto or required in {}", json::excerpt(given));
  if (const json::Value* tools = chat.find("tools"))
    chat.set("tools", allowed_tools(*tools, given));
  return mode;
}

// `sent`: the tools as they were sent, or null. A choice of tools that were all left out is none.
void set_choice(const json::Value& given, const json::Value* sent, json::Value& chat,
                RequestWarnings& warnings) {
  json::Value choice = choice_of(given, chat);
  const bool lost_some =
      sent && sent->is_array() && std::ranges::any_of(sent->as_array(), is_of_service);
  const json::Value* tools = chat.find("tools");
  const bool none_is_left = !tools || tools->as_array().empty();
  const bool is_of_lost = choice.is_object() && is_of_service(choice);
  const bool wants_call = choice.is_object() || choice == json::Value("required");
  if (lost_some && (is_of_lost || (none_is_left && wants_call)))
    return warnings.add("tool_choice is ignored: none of its tools is left");
  chat.set("tool_choice", std::move(choice));
}

// A field that a chat completion names otherwise or does not have. False: it has the same.
bool translate(const std::string& key, const json::Value& value, json::Value& chat,
               RequestWarnings& warnings) {
  if (key == "input" || key == "instructions" || key == "previous_response_id" ||
      key == "include" || key == "background" || find_field(kRefused, key))
    return true;
  if (key == "store") {
    if (!value.is_bool())
      fail_usage("expected store as true or false, found {}", value.type_name());
  } else if (key == "tools") {
    Tools tools(warnings);
    within("tools", [&] { tools.add(value); });
    if (!tools.all.empty()) chat.set(key, std::move(tools.all));
  } else if (key == "tool_choice") {
    // It is read behind the tools.
  } else if (key == "truncation") {
    check_truncation(value);
  } else if (key == "max_output_tokens") {
    chat.set("max_tokens", value);
  } else if (key == "text") {
    within("text", [&] { read_format(value, chat, warnings); });
  } else if (key == "reasoning") {
    within("reasoning", [&] { read_effort(value, chat); });
  } else {
    return false;
  }
  return true;
}

}  // namespace

json::Array input_items(const json::Value& body) {
  const json::Value* input = body.find("input");
  if (!input) fail_usage("expected \"input\" in the body");
  if (input->is_string()) return {json::Object{{"role", "user"}, {"content", *input}}};
  if (!input->is_array())
    fail_usage("expected an input of text or items, found {}", input->type_name());
  return input->as_array();
}

json::Value chat_body_of(const json::Value& body, const json::Array* earlier,
                         const ThoughtSeal* seal, RequestWarnings& warnings) {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  refuse_fields(body, kRefused);
  json::Value chat = json::Object{
      {"messages", within("messages", [&] { return messages_of(body, earlier, seal, warnings); })}};
  for (const auto& [key, value] : body.as_object())
    if (!value.is_null() && !translate(key, value, chat, warnings)) chat.set(key, value);
  if (const json::Value* choice = body.find("tool_choice"); choice && !choice->is_null())
    within("tool_choice", [&] { set_choice(*choice, body.find("tools"), chat, warnings); });
  return chat;
}

namespace {

// A user's message, with which a turn begins.
bool begins_turn(const json::Value& item) {
  const std::string type = text_in(item, "type");
  return (type.empty() || type == "message") && text_in(item, "role") == "user";
}

bool is_of_system(const json::Value& item) {
  const std::string role = text_in(item, "role");
  return role == "system" || role == "developer";
}

void read_background(const json::Value& body, Request& request) {
  const BodyFields fields(body);
  request.background = fields.read_flag("background", false);
  if (request.background && !fields.read_flag("store", true))
    fail_usage("expected background only of a response that is stored, found \"store\": false");
}

}  // namespace

size_t turns_of(const json::Array& items) {
  return static_cast<size_t>(std::ranges::count_if(items, begins_turn));
}

json::Array without_turns(const json::Array& items, size_t turns) {
  json::Array left;
  size_t begun = 0;
  for (const json::Value& item : items) {
    begun += begins_turn(item);
    if (begun > turns || turns == 0 || is_of_system(item)) left.push_back(item);
  }
  return left;
}

void read_reasoning(const json::Value& body, Request& request) {
  read_background(body, request);
  if (const json::Value* reasoning = body.find("reasoning"))
    for (const char* name : {"summary", "generate_summary"})
      if (const json::Value* v = reasoning->find(name)) request.summary |= !v->is_null();
  const json::Value* include = body.find("include");
  if (!include || include->is_null()) return;
  if (!include->is_array())
    fail_usage("expected include as a list, found {}", include->type_name());
  for (const json::Value& one : include->as_array())
    request.sealed |= one == json::Value("reasoning.encrypted_content");
}

}  // namespace invar::openai
