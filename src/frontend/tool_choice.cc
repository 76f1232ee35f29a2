#include "frontend/tool_choice.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"
#include "frontend/body_fields.h"
#include "frontend/response_input.h"

namespace invar::openai {

namespace {

constexpr std::string_view kModes[] = {"none", "auto", "required", "any"};

// "any" is Mistral's and Anthropic's word.
json::Value mode_of(const std::string& word) {
  return word == "any" ? "required" : word;
}

// A tool's name, as chat completions and as responses have it.
std::string name_in(const json::Value& tool) {
  const json::Value* function = tool.find("function");
  if (!function) function = tool.find("custom");
  return text_member(function ? *function : tool, "name");
}

json::Array allowed_tools(const json::Value& tools, const json::Value& choice) {
  const json::Value* named = choice.find("tools");
  if (!named || !named->is_array())
    fail_usage("expected tools as a list in {}", json::excerpt(choice));
  json::Array allowed;
  for (const json::Value& one : named->as_array()) {
    // A service's tool has no name, and is none of these.
    const std::string type = text_member(one, "type");
    if (!type.empty() && type != "function" && type != "custom") continue;
    const std::string name = name_in(one);
    const auto found = std::ranges::find(tools.as_array(), name, name_in);
    if (name.empty() || found == tools.as_array().end())
      fail_usage("expected the name of one of the tools, found {}", json::excerpt(one));
    allowed.push_back(*found);
  }
  return allowed;
}

}  // namespace

json::Value plain_choice(const json::Value& given, json::Value& chat) {
  if (given.is_string()) return mode_of(given.as_string());
  const std::string type = text_member(given, "type");
  if (among(type, kModes)) return mode_of(type);
  json::Value choice = given;
  if (type == "custom")
    choice =
        json::Object{{"type", "function"}, {"function", json::Object{{"name", name_in(given)}}}};
  if (type != "allowed_tools") return choice;
  const json::Value* inner = given.find("allowed_tools");  // as chat completions have it
  const json::Value& allowed = inner ? *inner : given;
  const std::string mode = text_member(allowed, "mode");
  if (mode != "auto" && mode != "required")
    fail_usage("expected a mode auto or required in {}", json::excerpt(given));
  if (const json::Value* tools = chat.find("tools"); tools && tools->is_array())
    chat.set("tools", allowed_tools(*tools, allowed));
  return mode;
}

std::optional<json::Value> with_plain_choice(const json::Value& body) {
  const json::Value* choice = body.find("tool_choice");
  const bool is_word = choice && *choice == json::Value("any");
  const std::string type = choice ? text_member(*choice, "type") : "";
  if (!is_word && type != "allowed_tools" && type != "custom" && !among(type, kModes))
    return std::nullopt;
  json::Value plain = body;
  json::Value made = within("tool_choice", [&] { return plain_choice(*choice, plain); });
  plain.set("tool_choice", std::move(made));
  return plain;
}

}  // namespace invar::openai
