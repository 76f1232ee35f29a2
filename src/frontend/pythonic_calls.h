// Calls written as a list in Python: [name(key="value", other=[1, 2]), ...].
#pragma once

#include <string_view>
#include <vector>

#include "frontend/tool_calls.h"

namespace invar {

// Appends the calls where all of `text` is such a list, else nothing. `is_cut`: the list may lack
// its end; then of the last call the arguments that are whole, left open.
void read_pythonic_calls(std::string_view text, bool is_cut, std::vector<ToolCall>& calls);

}  // namespace invar
