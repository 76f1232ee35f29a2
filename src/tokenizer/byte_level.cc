#include "tokenizer/byte_level.h"

#include <array>

#include "tokenizer/utf8.h"

namespace invar::tokenizer {

namespace {

struct Tables {
  std::array<char32_t, 256> character;
  std::array<int, 0x144> byte;  // by character; -1 where it spells none
};

constexpr Tables make_tables() {
  Tables tables{};
  tables.byte.fill(-1);
  char32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    const char32_t c = printable ? b : next++;
    tables.character[b] = c;
    tables.byte[c] = b;
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::optional<std::string> bytes_from_spelling(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t i = 0; i < spelling.size(); i += utf8::length(spelling[i])) {
    const char32_t c = utf8::decode(spelling, i);
    if (c >= kTables.byte.size() || kTables.byte[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kTables.byte[c]);
  }
  return bytes;
}

std::string spelling_of(std::string_view bytes) {
  std::string spelling;
  spelling.reserve(bytes.size() * 2);
  for (const char b : bytes)
    utf8::append(spelling, kTables.character[static_cast<unsigned char>(b)]);
  return spelling;
}

}  // namespace invar::tokenizer
