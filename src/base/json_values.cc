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

size_t text_bytes(const Value& value) {
  size_t bytes = value.is_string() ? value.as_string().size() : 0;
  if (value.is_array())
    for (const Value& one : value.as_array()) bytes += text_bytes(one);
  if (value.is_object())
    for (const auto& [name, one] : value.as_object()) bytes += name.size() + text_bytes(one);
  return bytes;
}

}  // namespace invar::json
