#include "base/json_values.h"

namespace invar::json {

bool has_more_values(std::string_view text, size_t most) {
  if (text.size() / 2 <= most) return false;  // a value and its comma have two bytes
  size_t commas = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\')
      ++i;
    else if (text[i] == '"')
      in_string = !in_string;
    else if (!in_string && text[i] == ',' && ++commas > most)
      return true;
  }
  return false;
}

}  // namespace invar::json
