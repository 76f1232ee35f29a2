#include "train/corpus/phrase.h"

#include "base/check.h"

namespace invar::corpus {

namespace {

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}

// Where the bracket that opens at `at` closes.
size_t closing(std::string_view pattern, size_t at) {
  int depth = 0;
  for (size_t i = at; i < pattern.size(); ++i) {
    depth += (pattern[i] == '[') - (pattern[i] == ']');
    if (depth == 0) return i;
  }
  CHECK(false, "a pattern with an open bracket");
  return 0;
}

std::vector<std::string_view> parts_of(std::string_view choices) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= choices.size(); ++i) {
    if (i < choices.size() && choices[i] == '[') ++depth;
    if (i < choices.size() && choices[i] == ']') --depth;
    if (i < choices.size() && (choices[i] != '|' || depth > 0)) continue;
    parts.push_back(choices.substr(begin, i - begin));
    begin = i + 1;
  }
  return parts;
}

// One space at most, none at the ends of lines, capitals where sentences begin.
std::string tidied(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    const bool after_break = out.empty() || out.back() == ' ' || out.back() == '\n';
    if (c == ' ' && after_break) continue;
    if ((c == '\n' || c == '.' || c == ',' || c == '!' || c == '?') && !out.empty() &&
        out.back() == ' ')
      out.pop_back();
    if (c == ' ' || c == '\n') {
      if (!out.empty() && (out.back() == '.' || out.back() == '!' || out.back() == '?'))
        begins = true;
      if (c == '\n') begins = true;
      out += c;
      continue;
    }
    out += begins && is_lower(c) ? static_cast<char>(c - 'a' + 'A') : c;
    if (c != '"') begins = false;
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

}  // namespace

std::string with_article(std::string_view noun) {
  const bool vowel = noun.starts_with("a") || noun.starts_with("e") || noun.starts_with("i") ||
                     noun.starts_with("o") || noun.starts_with("honest") ||
                     (noun.starts_with("u") && !noun.starts_with("uni"));
  return std::string(vowel ? "an " : "a ") + std::string(noun);
}

std::string capitalized(std::string text) {
  if (!text.empty() && is_lower(text[0])) text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string plural(std::string_view noun) {
  const bool hisses = noun.ends_with("ch") || noun.ends_with("s") || noun.ends_with("x");
  return std::string(noun) + (hisses ? "es" : "s");
}

const std::string& Phrases::get(const std::string& name) const {
  const auto found = values_.find(name);
  CHECK(found != values_.end(), "a pattern names what was not set");
  return found->second;
}

void Phrases::expand(std::string_view pattern, std::string& out) const {
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '[') {
      const size_t end = closing(pattern, i);
      expand(random_.pick(parts_of(pattern.substr(i + 1, end - i - 1))), out);
      i = end;
    } else if (pattern[i] == '{') {
      const size_t end = pattern.find('}', i);
      CHECK(end != std::string_view::npos, "a pattern with an open brace");
      const std::string name(pattern.substr(i + 1, end - i - 1));
      out += name.starts_with("a ") ? with_article(get(name.substr(2))) : get(name);
      i = end;
    } else {
      out += pattern[i];
    }
  }
}

std::string Phrases::fragment(std::string_view pattern) const {
  std::string out;
  expand(pattern, out);
  return out;
}

std::string Phrases::operator()(std::string_view pattern) const {
  return tidied(fragment(pattern));
}

}  // namespace invar::corpus
