#include "frontend/front_reader.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "frontend/thoughts.h"

namespace invar {

void skip_spaces(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kGaps), text.size()));
}

bool FrontReader::take(std::string_view word) {
  skip_spaces(text_);
  if (text_.starts_with(word)) return text_.remove_prefix(word.size()), true;
  ends_ |= word.starts_with(text_);
  return false;
}

std::optional<std::string> FrontReader::quoted() {
  if (!take("\"")) return std::nullopt;
  size_t end = 0;
  while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
  if (end >= text_.size()) return ends_ = true, std::nullopt;
  const std::string word = "\"" + std::string(text_.substr(0, end + 1));
  text_.remove_prefix(end + 1);
  try {
    return json::parse(word, "a name").as_string();
  } catch (const Error&) {
    return std::nullopt;
  }
}

size_t FrontSearch::gaps(std::string_view text, std::string_view gaps) {
  return gaps_ = std::min(text.find_first_not_of(gaps, gaps_), text.size());
}

size_t FrontSearch::find(std::string_view text, std::string_view mark) {
  const size_t at = text.find(mark, looked_);
  if (at == text.npos) looked_ = text.size() - beginning_of(mark, text);
  return at;
}

size_t FrontSearch::end_of_object(std::string_view text) {
  const size_t from = std::exchange(looked_, text.size());
  const size_t size = brackets_.end_in(text.substr(from));
  return size ? from + size : 0;
}

}  // namespace invar
