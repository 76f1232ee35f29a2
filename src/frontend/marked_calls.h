// Calls that are a name and an object of JSON, or of Gemma 4's, between marks of their own.
#pragma once

#include <optional>
#include <string_view>

#include "frontend/front_reader.h"
#include "frontend/tool_calls.h"

namespace invar {

// The marks of such calls.
struct MarkedCalls {
  ToolFormat format;
  std::string_view open, close;              // around several calls
  std::string_view call, between, call_end;  // before a name, its arguments, and behind them
};

// Null: the format is another one.
const MarkedCalls* marked_calls_of(ToolFormat format);

// The front of a place behind `open`.
CallHead marked_head(const MarkedCalls& style, std::string_view text, FrontSearch& search);
// Behind Gemma 4's mark: call:NAME{...}
CallHead gemma_head(std::string_view text);

// Behind <function=: NAME>{...}
CallHead function_head(std::string_view text);

// A call that was cut, from its name on.
std::optional<ToolCall> cut_marked_call(const MarkedCalls& style, std::string_view text);

}  // namespace invar
