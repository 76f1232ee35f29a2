// Calls written as JSON: {"name": ..., "arguments" or "parameters": {...}}.
#pragma once

#include <optional>
#include <string_view>

#include "frontend/tool_calls.h"

namespace invar {

// The member that a call's name is. Before "tool_name" may stand a "tool_call_id".
enum class NameMember { name, tool_name };

// The call that all of `text` is, or nothing. `may_lack`: arguments, which are {} then.
std::optional<ToolCall> read_json_call(std::string_view text, bool may_lack = false,
                                       NameMember member = NameMember::name);
// The head of a call up to where its arguments, an object, begin; text where the front of `text` is
// none.
CallHead json_head(std::string_view text, NameMember member = NameMember::name);
// A call that was cut, from its name on. Nothing where its name is not whole, or it is none.
std::optional<ToolCall> read_cut_json(std::string_view text, NameMember member = NameMember::name);

// The same of {NAME: {...}}.
CallHead keyed_head(std::string_view text);
std::optional<ToolCall> read_cut_keyed(std::string_view text);

}  // namespace invar
