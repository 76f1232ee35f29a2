// UTF-8 (RFC 3629): no surrogates, no overlong forms, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace invar::utf8 {

// The character at the front of some bytes.
struct Front {
  enum Kind { kCharacter, kBroken, kCutOff } kind;
  int length;  // in bytes
};

// The front of `bytes`, which must not be empty: a whole character; the longest start of one that
// cannot go on (Unicode's "maximal subpart", at least one byte); or the start of one where the
// bytes end.
Front front(std::string_view bytes);

// Where the first byte that is not UTF-8 stands, or npos. A character cut off by the end is not
// UTF-8.
size_t find_invalid(std::string_view bytes);

// Appends `bytes`, each broken or cut-off part replaced by U+FFFD.
void append_repaired(std::string& out, std::string_view bytes);

void append(std::string& out, char32_t c);

// The character that begins at `at` in valid text.
char32_t decode(std::string_view text, size_t at);

// The number of bytes of the character that begins with `first`, in valid text.
inline size_t length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

inline bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace invar::utf8
