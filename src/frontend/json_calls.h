// Calls written as JSON: {"name": ..., "arguments" or "parameters": {...}}.
#pragma once

#include <optional>
#include <string_view>

#include "frontend/tool_calls.h"

namespace invar {

// The call that all of `text` is, or nothing. `may_lack`: arguments, which are {} then.
std::optional<ToolCall> read_json_call(std::string_view text, bool may_lack = false);
// The head of a call up to where its arguments, an object, begin; text where the front of `text` is
// none.
CallHead json_head(std::string_view text);
// A call that was cut, from its name on. Nothing where its name is not whole, or it is none.
std::optional<ToolCall> read_cut_json(std::string_view text);

}  // namespace invar
