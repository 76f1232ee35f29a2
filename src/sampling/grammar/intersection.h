// The intersection of several regular expressions, as a table.
#pragma once

#include <span>

#include "sampling/grammar/language.h"

namespace invar::grammar {

struct Part {
  Language::Expr expr;
  bool negated = false;
};

// The texts that are in every part, but in none that is negated. `characters` derives any number of
// characters: a text's are counted by it. Finishes `language`.
Table intersection(Language& language, std::span<const Part> parts, Language::Expr characters);

}  // namespace invar::grammar
