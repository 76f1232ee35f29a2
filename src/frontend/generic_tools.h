// Tools, calls and results as words, for chat templates that have no place for them: the form that
// Hermes and Qwen were trained with, which ToolFormat::tagged reads.
#pragma once

#include <string>

#include "base/json.h"

namespace invar {

// A system message about the tools. `asks`: it also says how calls are written.
std::string generic_tools(const json::Value& tools, bool asks);
// A call as the assistant wrote it.
std::string generic_call(const json::Value& call);
std::string generic_result(const std::string& content);

}  // namespace invar
