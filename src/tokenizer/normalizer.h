// What is done to text before it is cut up: Unicode normal forms (ICU's, Unicode 15), literal
// replacements, a prefix.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace invar::tokenizer {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

struct Prepend {  // nothing is put before empty text
  std::string prefix;
};

struct Replace {
  std::string from, to;  // `from` is not empty
};

using NormalizerStep = std::variant<UnicodeForm, Prepend, Replace>;

// Applies the steps in order to valid UTF-8 text under 2 GiB. Throws UsageError when it grows
// beyond that.
void normalize(const std::vector<NormalizerStep>& steps, std::string& text);

void replace_all(std::string& text, const Replace& replace);

}  // namespace invar::tokenizer
