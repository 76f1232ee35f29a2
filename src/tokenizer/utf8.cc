#include "tokenizer/utf8.h"

#include <cstdint>
#include <cstring>

namespace invar::utf8 {

Front front(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned first = at(0);
  if (first < 0x80) return {Front::kCharacter, 1};
  if (first < 0xc2 || first > 0xf4) return {Front::kBroken, 1};
  const int length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // Only the second byte has a range that depends on the first: it keeps out overlong forms,
  // surrogates and what lies above U+10FFFF.
  unsigned low = 0x80, high = 0xbf;
  if (first == 0xe0) low = 0xa0;
  if (first == 0xed) high = 0x9f;
  if (first == 0xf0) low = 0x90;
  if (first == 0xf4) high = 0x8f;
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == bytes.size()) return {Front::kCutOff, i};
    if (at(i) < low || at(i) > high) return {Front::kBroken, i};
    low = 0x80, high = 0xbf;
  }
  return {Front::kCharacter, length};
}

size_t find_invalid(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    uint64_t eight;
    if (i + 8 <= bytes.size() && (std::memcpy(&eight, bytes.data() + i, 8), true) &&
        (eight & 0x8080808080808080u) == 0) {
      i += 8;
      continue;
    }
    const Front f = front(bytes.substr(i));
    if (f.kind != Front::kCharacter) return i;
    i += f.length;
  }
  return std::string_view::npos;
}

void append_repaired(std::string& out, std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t invalid = find_invalid(bytes);
    out += bytes.substr(0, invalid);
    if (invalid == std::string_view::npos) return;
    bytes.remove_prefix(invalid);
    bytes.remove_prefix(front(bytes).length);
    out += kReplacement;
  }
}

void append(std::string& out, char32_t c) {
  const auto put = [&](unsigned byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6);
    put(0x80 | (c & 63));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 63));
    put(0x80 | (c & 63));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 63));
    put(0x80 | (c >> 6 & 63));
    put(0x80 | (c & 63));
  }
}

char32_t decode(std::string_view text, size_t at) {
  const size_t n = length(text[at]);
  char32_t c = static_cast<unsigned char>(text[at]);
  if (n > 1) c &= 0x7f >> n;
  for (size_t i = 1; i < n; ++i) c = c << 6 | (static_cast<unsigned char>(text[at + i]) & 63);
  return c;
}

}  // namespace invar::utf8
