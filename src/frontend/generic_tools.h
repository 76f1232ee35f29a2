// Tools, calls and results as words, for chat templates that have no place for them: the form that
// Hermes and Qwen were trained with, which ToolFormat::tagged reads, or calls as the template says.
#pragma once

#include <string>

#include "base/json.h"
#include "frontend/tool_calls.h"

namespace invar {

// A system message about the tools. `asks`: it also says how calls are written.
std::string generic_tools(const json::Value& tools, bool asks);
// The calls of a message as the assistant wrote them. `format`: the template's, or none.
std::string generic_calls(const json::Array& calls, ToolFormat format);
std::string generic_result(const std::string& content);

}  // namespace invar
