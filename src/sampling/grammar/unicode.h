// Sets of characters that Unicode names, from ICU.
#pragma once

#include <optional>
#include <string_view>

#include "sampling/grammar/language.h"

namespace invar::grammar {

// The characters of \p{name}, as L, Letter, Lu, Greek, Script=Greek or White_Space; none: no such
// name.
std::optional<CodePoints> characters_of(std::string_view name);

// These, and what differs from them in its case alone.
CodePoints with_other_cases(const CodePoints& ranges);

}  // namespace invar::grammar
