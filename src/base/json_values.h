// How much a JSON text or value holds, before memory is taken for it or for a copy.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/json.h"

namespace invar::json {

// Whether more than `most` commas stand between the values of the text, so that it has more than
// `most` + 1 of them in arrays and objects. Takes time by the text's bytes and no memory; the text
// need not be JSON.
bool has_more_values(std::string_view text, size_t most);

// The same of the names of members, each of which takes more memory than a value.
bool has_more_names(std::string_view text, size_t most);

// Bytes of memory of a Value of the text, those that malloc adds included. As the others.
size_t parsed_bytes(std::string_view text);

// Bytes of its texts, names of members included.
size_t text_bytes(const Value& value);

}  // namespace invar::json
