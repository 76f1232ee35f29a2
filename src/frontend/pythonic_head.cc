// The fronts of places where calls may be, of formats that write them as Python does.
#include <cctype>

#include "frontend/argument_reader.h"
#include "frontend/call_heads.h"

namespace invar {

namespace {

using HeadKind = CallHead::Kind;

// Letters, digits, underscores and points behind spaces, which it takes.
std::string take_word(FrontReader& reader) {
  std::string_view rest = reader.rest();
  skip_spaces(rest);
  size_t size = 0;
  while (size < rest.size() && (std::isalnum(static_cast<unsigned char>(rest[size])) ||
                                rest[size] == '_' || rest[size] == '.'))
    ++size;
  std::string found(rest.substr(0, size));
  reader = FrontReader(rest.substr(size));
  return found;
}

bool is_name(const std::string& word) {
  return !word.empty() && !std::isdigit(static_cast<unsigned char>(word[0]));
}

}  // namespace

CallHead pythonic_head(std::string_view text, const json::Value& tools, bool first,
                       FrontSearch& search) {
  const CallHead other{.kind = HeadKind::text, .bytes = text.size(), .ends = true};
  text = text.substr(0, kMostOfName);
  const CallHead cut = text.size() < kMostOfName ? CallHead() : other;
  FrontReader reader(text);
  if (!first && reader.take("]"))
    return {.kind = HeadKind::skip, .bytes = text.size() - reader.rest().size(), .ends = true};
  if (!reader.take(first ? "[" : ",")) return reader.ends() ? cut : other;
  const std::string name = take_word(reader);
  if (reader.rest().empty()) return cut;
  if (!is_name(name)) return other;
  if (!reader.take("(")) return reader.ends() ? cut : other;
  search.is_none = !is_tool(tools, name);
  if (search.is_none) return CallHead();
  const size_t bytes = text.size() - reader.rest().size();
  const bool has_key = !take_word(reader).empty();
  if (!reader.take(has_key ? "=" : ")")) return reader.ends() ? cut : other;
  return {.kind = HeadKind::call, .bytes = bytes, .name = name};
}

CallHead python_list_head(std::string_view text, std::string_view close, FrontSearch& search) {
  const size_t skipped = search.gaps(text, " \t\r\n,");
  const std::string_view rest = text.substr(skipped, kMostOfName);
  if (rest.starts_with('[') || rest.starts_with(']'))
    return {.kind = HeadKind::skip, .bytes = skipped + 1};
  if (rest.starts_with(close))
    return {.kind = HeadKind::skip, .bytes = skipped + close.size(), .ends = true};
  if (close.starts_with(rest)) return CallHead();
  const CallHead none{.kind = HeadKind::text, .bytes = skipped, .ends = true};
  FrontReader reader(rest);
  const std::string name = take_word(reader);
  const auto missing = [&](bool is_open) {
    return is_open && rest.size() < kMostOfName ? CallHead() : none;
  };
  if (reader.rest().empty()) return missing(true);
  if (!is_name(name)) return none;
  if (!reader.take("(")) return missing(reader.ends());
  const size_t bytes = skipped + rest.size() - reader.rest().size();
  const bool has_key = !take_word(reader).empty();
  if (!reader.take(has_key ? "=" : ")")) return missing(reader.ends());
  return {.kind = HeadKind::call, .bytes = bytes, .name = name};
}

}  // namespace invar
