// The fronts of places where calls may be, of formats that write JSON or Python.
#pragma once

#include <optional>
#include <string_view>

#include "base/json.h"
#include "frontend/front_reader.h"
#include "frontend/tool_calls.h"

namespace invar {

// Whether the request has a tool of this name, or none at all.
bool is_tool(const json::Value& tools, const std::string& called);
// A call without the mark that some models write before it.
std::string_view without_tag(std::string_view text);

// Behind <tool_call>.
CallHead tagged_head(std::string_view text, FrontSearch& search);
// How a call in a list is written.
enum class ListedCall {
  object,  // {"name": ..., "arguments": {...}}
  named,   // the same, or NAME[ARGS]{...}, as Mistral's newer models write it
  tool,    // {"tool_call_id": ..., "tool_name": ..., "parameters": {...}}
  keyed,   // {NAME: {...}}
};
ListedCall listed_call_of(ToolFormat format);
// A list of calls, or one behind another, up to `close`; where that is empty, up to the list's end.
CallHead listed_head(std::string_view text, std::string_view close, ListedCall how,
                     FrontSearch& search);
// A call of a list that was cut.
std::optional<ToolCall> cut_listed_call(std::string_view text, ListedCall how);
// Behind "to=": NAME, a mark, JSON.
CallHead channel_head(std::string_view text, FrontSearch& search);
// An object as the whole answer, or several with separators between. `first`: none has come yet.
CallHead bare_head(ToolFormat format, std::string_view text, const json::Value& tools, bool first,
                   FrontSearch& search);
// [NAME(KEY=VALUE, ...), ...]. A list that calls no tool is read when the answer is there as a
// whole.
CallHead pythonic_head(std::string_view text, const json::Value& tools, bool first,
                       FrontSearch& search);
// The same up to `close`; brackets and commas may be left out.
CallHead python_list_head(std::string_view text, std::string_view close, FrontSearch& search);

}  // namespace invar
