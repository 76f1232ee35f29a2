#include "sampling/grammar/unicode.h"

#include <unicode/uset.h>

#include <algorithm>
#include <memory>
#include <string>

namespace invar::grammar {

namespace {

struct Close {
  void operator()(USet* set) const { uset_close(set); }
};
using Set = std::unique_ptr<USet, Close>;

CodePoints ranges_of(const USet* set) {
  CodePoints ranges;
  for (int32_t i = 0; i < uset_getItemCount(set); ++i) {
    UChar32 low = 0, high = 0;
    UErrorCode error = U_ZERO_ERROR;
    // It returns the length of a text; a range has none.
    if (uset_getItem(set, i, &low, &high, nullptr, 0, &error) == 0 && U_SUCCESS(error))
      ranges.push_back({static_cast<char32_t>(low), static_cast<char32_t>(high)});
  }
  return ranges;
}

}  // namespace

std::optional<CodePoints> characters_of(std::string_view name) {
  const auto is_of_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '=';
  };
  if (name.empty() || name.size() > 64 || !std::ranges::all_of(name, is_of_name))
    return std::nullopt;
  std::u16string pattern = u"[\\p{";
  for (const char c : name) pattern += static_cast<char16_t>(c);
  pattern += u"}]";
  UErrorCode error = U_ZERO_ERROR;
  const Set set(uset_openPattern(pattern.data(), static_cast<int32_t>(pattern.size()), &error));
  if (U_FAILURE(error)) return std::nullopt;
  return ranges_of(set.get());
}

CodePoints with_other_cases(const CodePoints& ranges) {
  const Set set(uset_openEmpty());
  for (const auto& [low, high] : ranges)
    uset_addRange(set.get(), static_cast<UChar32>(low), static_cast<UChar32>(high));
  uset_closeOver(set.get(), USET_CASE_INSENSITIVE);
  return ranges_of(set.get());
}

}  // namespace invar::grammar
