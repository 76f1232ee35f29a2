#include "frontend/generic_tools.h"

#include <fmt/format.h>

#include "frontend/marked_calls.h"

namespace invar {

namespace {

std::string json_call(const json::Value& call) {
  const json::Value& function = *call.find("function");
  const json::Value* arguments = function.find("arguments");
  return "{\"name\": " + json::dump(*function.find("name")) +
         ", \"arguments\": " + (arguments ? json::dump(*arguments) : "{}") + "}";
}

// NAME(KEY=JSON, ...)
std::string python_call(const json::Value& call) {
  const json::Value& function = *call.find("function");
  const json::Value* arguments = function.find("arguments");
  std::string text = function.find("name")->as_string() + "(";
  if (arguments && arguments->is_object())
    for (const auto& [name, value] : arguments->as_object())
      text += (text.ends_with('(') ? "" : ", ") + name + "=" + json::dump(value);
  return text + ")";
}

// Kimi K2's template shows calls, but changes a list as it does, which no sandbox allows.
std::string kimi_calls(const json::Array& calls) {
  const MarkedCalls& style = *marked_calls_of(ToolFormat::kimi_k2);
  std::string text(style.open);
  for (size_t i = 0; i < calls.size(); ++i) {
    const json::Value& function = *calls[i].find("function");
    const json::Value* arguments = function.find("arguments");
    text +=
        fmt::format("{}functions.{}:{}{}{}{}", style.call, function.find("name")->as_string(), i,
                    style.between, arguments ? json::dump(*arguments) : "{}", style.call_end);
  }
  return text + std::string(style.close);
}

}  // namespace

std::string generic_tools(const json::Value& tools, bool asks) {
  std::string text =
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
      "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
  for (const json::Value& tool : tools.as_array()) text += "\n" + json::dump(tool);
  text += "\n</tools>";
  if (!asks) return text;
  return text +
         "\n\nFor each function call, return a json object with function name and "
         "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
         "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
}

std::string generic_calls(const json::Array& calls, ToolFormat format) {
  if (format == ToolFormat::kimi_k2) return kimi_calls(calls);
  const bool is_list = format == ToolFormat::granite || format == ToolFormat::hunyuan_a13b ||
                       format == ToolFormat::nemotron_json || format == ToolFormat::lfm2;
  const bool is_python = format == ToolFormat::lfm2 || format == ToolFormat::olmo3;
  const char* between = is_list ? ", " : "\n";
  std::string text;
  for (const json::Value& call : calls) {
    if (!text.empty()) text += between;
    const std::string one = is_python ? python_call(call) : json_call(call);
    text += is_list || is_python ? one : "<tool_call>\n" + one + "\n</tool_call>";
  }
  const std::string open(opening_mark(format)), close(closing_mark(format));
  if (is_list) return open + "[" + text + "]" + close;
  return is_python ? open + "\n" + text + "\n" + close : text;
}

std::string generic_result(const std::string& content) {
  return "<tool_response>\n" + content + "\n</tool_response>";
}

}  // namespace invar
