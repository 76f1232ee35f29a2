// How byte-level vocabularies spell bytes: each of the 256 bytes as one printable character. The
// printable Latin-1 characters (33-126, 161-172, 174-255) stand for themselves, the other 68 bytes
// are U+0100 and up, in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace invar::tokenizer {

// The bytes that valid UTF-8 text spells, or nothing when it holds a character that spells no byte.
std::optional<std::string> bytes_from_spelling(std::string_view spelling);

std::string spelling_of(std::string_view bytes);

}  // namespace invar::tokenizer
