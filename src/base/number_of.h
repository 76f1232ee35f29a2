// Numbers that are whole texts.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace invar {

// The number that the text is, from its first character to its last; nothing where it is another
// text, or a number that T does not have.
template <typename T>
std::optional<T> number_of(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value)
                                                                  : std::nullopt;
}

}  // namespace invar
