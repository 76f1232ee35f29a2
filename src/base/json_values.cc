#include "base/json_values.h"

namespace invar::json {

namespace {

// Whether the mark stands more than `most` times outside of texts.
bool has_more(std::string_view text, char mark, size_t most) {
  size_t count = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\')
      ++i;
    else if (text[i] == '"')
      in_string = !in_string;
    else if (!in_string && text[i] == mark && ++count > most)
      return true;
  }
  return false;
}

}  // namespace

bool has_more_values(std::string_view text, size_t most) {
  return text.size() / 2 > most && has_more(text, ',', most);  // a value and its comma: two bytes
}

bool has_more_names(std::string_view text, size_t most) {
  return text.size() / 4 > most && has_more(text, ':', most);  // "":1 is the shortest member
}

size_t parsed_bytes(std::string_view text) {
  constexpr size_t kPiece = 16, kInPlace = 15;  // of malloc; a text so long has no piece
  size_t bytes = sizeof(Value);
  bool begins = false;  // a list or an object, which has no piece while it is empty
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') continue;
    if (begins && c != ']' && c != '}') bytes += kPiece + sizeof(Value);
    begins = c == '[' || c == '{';
    if (c == ',') bytes += sizeof(Value);
    if (c == ':') bytes += sizeof(Member) - sizeof(Value);
    if (c != '"') continue;
    const size_t begin = ++i;
    for (; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
    if (i - begin > kInPlace) bytes += kPiece + i - begin;
  }
  return bytes;
}

size_t text_bytes(const Value& value) {
  size_t bytes = value.is_string() ? value.as_string().size() : 0;
  if (value.is_array())
    for (const Value& one : value.as_array()) bytes += text_bytes(one);
  if (value.is_object())
    for (const auto& [name, one] : value.as_object()) bytes += name.size() + text_bytes(one);
  return bytes;
}

}  // namespace invar::json
