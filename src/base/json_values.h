// How much a JSON text holds, before memory is taken for it.
#pragma once

#include <cstddef>
#include <string_view>

namespace invar::json {

// Whether more than `most` commas stand between the values of the text, so that it has more than
// `most` + 1 of them in arrays and objects. Takes time by the text's bytes and no memory; the text
// need not be JSON.
bool has_more_values(std::string_view text, size_t most);

}  // namespace invar::json
