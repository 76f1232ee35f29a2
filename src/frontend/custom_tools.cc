#include "frontend/custom_tools.h"

#include <algorithm>

#include "base/error.h"
#include "frontend/body_fields.h"
#include "frontend/front_reader.h"
#include "frontend/response_input.h"
#include "sampling/grammar/schema_words.h"

namespace invar::openai {

namespace {

// Bytes in which the text of a call has to begin.
constexpr size_t kMostBefore = 256;

bool is_custom(const json::Value& value) {
  return text_member(value, "type") == "custom" && value.find("custom");
}

json::Array plain_tools(const json::Array& tools, std::vector<std::string>& names) {
  json::Array plain;
  for (const json::Value& tool : tools) {
    if (!is_custom(tool)) {
      plain.push_back(tool);
      continue;
    }
    json::Value function = function_of_custom(*tool.find("custom"));
    names.push_back(function.find("name")->as_string());
    plain.push_back(json::Object{{"type", "function"}, {"function", std::move(function)}});
  }
  return plain;
}

// {"type": "custom", "custom": {"name": ..., "input": ...}}
json::Value plain_call(const json::Value& call) {
  if (!is_custom(call)) return call;
  const json::Value& custom = *call.find("custom");
  const json::Value *name = custom.find("name"), *input = custom.find("input");
  if (!name || !name->is_string() || (input && !input->is_string()))
    fail_usage("expected calls of custom tools with a name and an input, found {}",
               json::excerpt(call));
  const json::Value arguments = json::dump(json::Object{{"input", input ? *input : ""}});
  json::Value plain = call;
  std::erase_if(plain.as_object(), [](const auto& member) { return member.first == "custom"; });
  plain.set("type", "function");
  plain.set("function", json::Object{{"name", *name}, {"arguments", arguments}});
  return plain;
}

const json::Value* calls_in(const json::Value& message) {
  const json::Value* calls = message.find("tool_calls");
  return calls && calls->is_array() ? calls : nullptr;
}

bool has_custom(const json::Value* list) {
  return list && list->is_array() && std::ranges::any_of(list->as_array(), is_custom);
}

json::Array plain_messages(const json::Array& messages) {
  json::Array plain;
  for (const json::Value& message : messages) {
    plain.push_back(message);
    const json::Value* calls = calls_in(message);
    if (!has_custom(calls)) continue;
    json::Array all;
    for (const json::Value& call : calls->as_array()) all.push_back(plain_call(call));
    plain.back().set("tool_calls", std::move(all));
  }
  return plain;
}

// Adds to the schema of a custom tool's text that it follows a format: {"type": "text"}, or a
// grammar, which chat completions have within another "grammar".
void add_format(json::Value& input, const json::Value& format) {
  if (format.is_null()) return;
  const std::string type = format.is_object() ? text_member(format, "type") : std::string();
  if (type == "text") return;
  if (type != "grammar")
    fail_usage("expected the type text or grammar in the format of a custom tool, found {}",
               json::excerpt(format));
  const json::Value* inner = format.find("grammar");
  const json::Value& grammar = inner && inner->is_object() ? *inner : format;
  const std::string syntax = text_member(grammar, "syntax");
  const json::Value* text = grammar.find("definition");
  if (!text || !text->is_string())
    fail_usage("expected the definition of a custom tool's grammar as a text, found {}",
               json::excerpt(grammar));
  const std::string& definition = text->as_string();
  if (syntax == "regex")
    input.set("pattern", "^(" + definition + ")$");
  else if (syntax == "lark")
    input.set(grammar::kLark, definition);
  else
    fail_usage("expected lark or regex as the syntax of a custom tool's grammar, found {}",
               json::quoted(syntax));
}

}  // namespace

json::Value function_of_custom(const json::Value& custom) {
  const json::Value* name = custom.find("name");
  if (!name || !name->is_string())
    fail_usage("expected tools of type custom with a name, found {}", json::excerpt(custom));
  json::Value input = json::Object{{"type", "string"}};
  if (const json::Value* format = custom.find("format")) add_format(input, *format);
  json::Value function = json::Object{{"name", *name}};
  if (const json::Value* text = custom.find("description"); text && !text->is_null())
    function.set("description", *text);
  function.set("parameters", json::Object{{"type", "object"},
                                          {"properties", json::Object{{"input", input}}},
                                          {"required", json::Array{"input"}}});
  function.set("strict", true);
  return function;
}

std::optional<json::Value> with_plain_tools(const json::Value& body,
                                            std::vector<std::string>& names) {
  const json::Value *tools = body.find("tools"), *messages = body.find("messages");
  const bool has_calls = messages && messages->is_array() &&
                         std::ranges::any_of(messages->as_array(), [](const json::Value& message) {
                           return has_custom(calls_in(message));
                         });
  if (!has_custom(tools) && !has_calls) return std::nullopt;
  json::Value plain = body;
  if (has_custom(tools))
    plain.set("tools", within("tools", [&] { return plain_tools(tools->as_array(), names); }));
  if (has_calls)
    plain.set("messages", within("messages", [&] { return plain_messages(messages->as_array()); }));
  return plain;
}

std::string CustomInput::push(std::string_view arguments) {
  all_ += arguments;
  held_ += arguments;
  if (at_ == At::before) {
    FrontReader reader(held_);
    const bool begins =
        reader.take("{") && reader.take("\"input\"") && reader.take(":") && reader.take("\"");
    if (!begins && reader.ends() && held_.size() < kMostBefore) return "";
    at_ = begins ? At::within : At::behind;
    began_ = begins;
    held_.erase(0, held_.size() - reader.rest().size());
  }
  return at_ == At::within ? read_text() : "";
}

// Escapes that are none stay as they are.
std::string CustomInput::read_text() {
  const auto is_high = [](std::string_view escape) {
    const auto digit = [&](size_t i) { return static_cast<char>(escape[i] | 0x20); };
    return escape.size() >= 4 && escape[1] == 'u' && digit(2) == 'd' &&
           std::string_view("89ab").find(digit(3)) != std::string_view::npos;
  };
  std::string text;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const size_t plain = std::min(rest.find_first_of("\"\\"), rest.size());
    text += rest.substr(0, plain);
    rest.remove_prefix(plain);
    if (rest.empty()) break;
    if (rest[0] == '"') {
      at_ = At::behind;
      break;
    }
    if (rest.size() < 2) break;
    size_t size = rest[1] == 'u' ? 6 : 2;
    if (rest.size() >= 6 && is_high(rest)) size = 12;  // another one follows
    if (rest.size() < size) break;
    const std::string_view escape = rest.substr(0, size);
    try {
      text += json::parse("\"" + std::string(escape) + "\"", "a text").as_string();
    } catch (const Error&) {
      text += escape;
    }
    rest.remove_prefix(size);
  }
  held_ = std::string(rest);
  return text;
}

// A text that does not begin where it should is known when the arguments are whole; of one that was
// cut within an escape that is left out.
std::string CustomInput::finish() const {
  if (began_) return "";
  try {
    const json::Value arguments = json::parse(all_, "arguments");
    if (const json::Value* input = arguments.find("input"); input && input->is_string())
      return input->as_string();
  } catch (const Error&) {
  }
  return "";
}

std::string custom_input(std::string_view arguments) {
  CustomInput input;
  std::string text = input.push(arguments);
  return text + input.finish();
}

}  // namespace invar::openai
