// Whether a text of an expression may have a word in it, wherever the parts of the expression meet.
#pragma once

#include <cstddef>
#include <string_view>

#include "sampling/grammar/language.h"

namespace invar::grammar {

constexpr size_t kMostWordBytes = 62;

// `word` has 1 to kMostWordBytes bytes. The rules of `root` are defined; counts of characters and
// the depth of rules are not looked at. The language's budget pays.
bool may_contain(const Language& language, Language::Expr root, std::string_view word);

}  // namespace invar::grammar
