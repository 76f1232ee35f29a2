// Sets of characters that Unicode names, from ICU.
#pragma once

#include <optional>
#include <string_view>

#include "sampling/grammar/language.h"

namespace invar::grammar {

// What \p{name} stands for, as L, Letter, Lu, Greek, Script=Greek or White_Space; none: nothing.
std::optional<CodePoints> characters_of(std::string_view name);

// These, and what differs from them in its case alone.
CodePoints with_other_cases(const CodePoints& ranges);

}  // namespace invar::grammar
