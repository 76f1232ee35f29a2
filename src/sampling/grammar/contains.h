// Whether a text of an expression may have a word in it, wherever the parts of the expression meet.
#pragma once

#include <string_view>

#include "sampling/grammar/language.h"

namespace invar::grammar {

// `word` has 1 to 62 bytes. The rules of `root` are defined; counts of characters and the depth of
// rules are not looked at. The language's budget pays.
bool may_contain(const Language& language, Language::Expr root, std::string_view word);

}  // namespace invar::grammar
