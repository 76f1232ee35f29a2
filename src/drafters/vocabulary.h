// Whether a drafter speaks the target's tokens: drafts are token ids, and of another vocabulary
// they would be other texts.
#pragma once

#include <string>

namespace invar {

// Compares the vocabularies in tokenizer.json where both directories have one. Throws UsageError,
// naming the first token that differs.
void expect_same_vocabulary(const std::string& target, const std::string& drafter);

}  // namespace invar
