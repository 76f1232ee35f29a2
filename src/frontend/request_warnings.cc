#include "frontend/request_warnings.h"

#include <algorithm>

namespace invar::openai {

void RequestWarnings::add(std::string_view sentence) {
  constexpr size_t kMost = 16, kLongest = 256;
  std::string text(sentence.substr(0, kLongest));
  // It becomes a header's value.
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  if (all_.size() < kMost && std::ranges::find(all_, text) == all_.end())
    all_.push_back(std::move(text));
}

}  // namespace invar::openai
