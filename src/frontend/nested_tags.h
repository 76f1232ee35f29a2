// Values of calls that are tags within tags.
#pragma once

#include <string_view>

#include "base/json.h"
#include "frontend/tag_style.h"

namespace invar {

// The value that "#/a/b" names within `root`; null where it names none.
const json::Value* referred(const json::Value& root, std::string_view pointer);

// A value that need not be a text.
json::Value value_of(std::string_view text);

// A value as MiniMax M3 writes it: members of an object are tags of their names, items of a list
// tags "item", and what has no tags is JSON or a text. `schema`, within `root`, says which where it
// is not null.
json::Value nested_value(const TagStyle& style, std::string_view text, const json::Value* schema,
                         const json::Value& root, int depth = 0);

}  // namespace invar
