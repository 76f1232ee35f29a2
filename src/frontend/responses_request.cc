#include <algorithm>

#include "base/error.h"
#include "frontend/body_fields.h"
#include "frontend/custom_tools.h"
#include "frontend/foreign_fields.h"
#include "frontend/response_input.h"
#include "frontend/responses.h"
#include "frontend/tool_choice.h"

namespace invar::openai {

namespace {

constexpr ForeignField kRefused[] = {
    {"conversation", "", "ask for \"previous_response_id\""},
    {"n", "1", "a response is one answer"},
    {"prompt", "", "give \"input\""},
    {"top_logprobs", "0", "a response has none: ask /v1/chat/completions"},
};

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
    const std::string type = text_member(tool, "type");
    const json::Value* name = tool.find("name");
    const json::Value* inner = tool.find("tools");
    if (type.empty() || ((type == "function" || type == "custom") && !name))
      fail_usage("expected tools of type function with a name, found {}", json::excerpt(tool));
    if (type == "namespace" && inner) return add(*inner);
    if (type == "function") return add_function(tool);
    if (type == "custom") return add_custom(tool);
    warnings_.add("tools of type " + type + " are left out");
  }

  void add_function(const json::Value& tool) {
    json::Value function = json::Object();
    for (const auto& [key, value] : tool.as_object())
      if (key != "type" && !value.is_null()) function.set(key, value);
    all.push_back(json::Object{{"type", "function"}, {"function", std::move(function)}});
  }

  void add_custom(const json::Value& tool) {
    all.push_back(json::Object{{"type", "function"}, {"function", function_of_custom(tool)}});
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

// [{"type": "compaction", ...}]
void warn_of_edits(const json::Value& edits, RequestWarnings& warnings) {
  if (!edits.is_array())
    fail_usage("expected context_management as a list, found {}", edits.type_name());
  for (const json::Value& edit : edits.as_array())
    warnings.add("the edit " + json::quoted(text_member(edit, "type")) +
                 " of context_management is not made");
}

// A tool that a service would run.
bool is_of_service(const json::Value& tool) {
  const std::string type = text_member(tool, "type");
  return !type.empty() && type != "function" && type != "custom" && type != "namespace";
}

// `sent`: the tools as they were sent, or null. A choice of tools that were all left out is none.
void set_choice(const json::Value& given, const json::Value* sent, json::Value& chat,
                RequestWarnings& warnings) {
  json::Value choice = plain_choice(given, chat);
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

// Translates a field that a chat completion names otherwise or does not have. False: it has the
// same. Calls that max_tool_calls counts are those of tools that a service runs, and none are.
bool translate(const std::string& key, const json::Value& value, json::Value& chat,
               RequestWarnings& warnings) {
  if (key == "input" || key == "instructions" || key == "previous_response_id" ||
      key == "include" || key == "background" || find_field(kRefused, key))
    return true;
  if (key == "max_tool_calls") {
    const std::optional<int64_t> most = value.to_integer();
    if (!value.is_null() && !(most && *most > 0))
      fail_usage("expected max_tool_calls as a whole number above 0, found {}",
                 json::excerpt(value));
    return true;
  }
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
  } else if (key == "context_management") {
    warn_of_edits(value, warnings);
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

void read_background(const json::Value& body, Request& request) {
  const BodyFields fields(body);
  request.background = fields.read_flag("background", false);
  if (request.background && !fields.read_flag("store", true))
    fail_usage("expected background only of a response that is stored, found \"store\": false");
}

}  // namespace

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
