// The schema of all values that do not follow a schema.
#pragma once

#include <optional>

#include "base/json.h"

namespace invar::grammar {

// Values of which none follows `schema`; not always all of them. None where that cannot be said.
std::optional<json::Value> opposite_schema(const json::Value& schema);

// Values that follow one of both.
json::Value any_of(json::Value a, json::Value b);

}  // namespace invar::grammar
