// Changes text before it is cut up: Unicode normal forms (ICU's, Unicode 15), literal replacements,
// a prefix.
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

// Applies the steps in order to valid UTF-8 text. Throws UsageError when it grows beyond what text
// that means something does: 32 times its size and 64 KiB.
void normalize(const std::vector<NormalizerStep>& steps, std::string& text);

// Throws UsageError when the text grows beyond `most` bytes.
void replace_all(std::string& text, const Replace& replace, size_t most);

}  // namespace invar::tokenizer
