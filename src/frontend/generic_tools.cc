#include "frontend/generic_tools.h"

namespace invar {

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

std::string generic_call(const json::Value& call) {
  const json::Value& function = *call.find("function");
  const json::Value* arguments = function.find("arguments");
  return "<tool_call>\n{\"name\": " + json::dump(*function.find("name")) +
         ", \"arguments\": " + (arguments ? json::dump(*arguments) : "{}") + "}\n</tool_call>";
}

std::string generic_result(const std::string& content) {
  return "<tool_response>\n" + content + "\n</tool_response>";
}

}  // namespace invar
