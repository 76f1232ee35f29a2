#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/error.h"
#include "sampling/grammar/languages.h"

namespace invar::grammar {

namespace {

using CodePoints = Nfa::CodePoints;
constexpr char32_t kLast = 0x10ffff;
constexpr int kMaxRepetitions = 1000, kMaxNesting = 100;

struct Node {
  enum Kind { kCharacter, kSequence, kChoice, kRepeat } kind;
  CodePoints ranges;
  std::vector<Node> children;
  int low = 0, high = 0;
};

void sort_and_merge(CodePoints& ranges) {
  std::sort(ranges.begin(), ranges.end());
  CodePoints merged;
  for (const auto& [low, high] : ranges)
    if (!merged.empty() && low <= merged.back().second + 1)
      merged.back().second = std::max(merged.back().second, high);
    else
      merged.push_back({low, high});
  ranges = std::move(merged);
}

CodePoints complement(CodePoints ranges) {
  sort_and_merge(ranges);
  CodePoints out;
  char32_t next = 0;
  for (const auto& [low, high] : ranges) {
    if (low > next) out.push_back({next, low - 1});
    next = high + 1;
  }
  if (next <= kLast) out.push_back({next, kLast});
  return out;
}

class Parser {
 public:
  explicit Parser(std::string_view pattern) {
    for (size_t i = 0; i < pattern.size();) i += take_character(pattern.substr(i));
  }

  Node parse() {
    if (at_ < text_.size() && text_[at_] == '^') ++at_;
    Node node = parse_choice();
    if (at_ < text_.size()) refuse("a ) that nothing opens");
    return node;
  }

 private:
  // The pattern is UTF-8 (as all of JSON is); broken bytes are refused.
  size_t take_character(std::string_view rest) {
    const auto byte = static_cast<unsigned char>(rest[0]);
    const size_t size = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    char32_t c = size == 1 ? byte : byte & (0xff >> (size + 1));
    bool valid = byte < 0x80 || (byte >= 0xc2 && byte < 0xf5 && rest.size() >= size);
    for (size_t i = 1; valid && i < size; ++i) {
      valid = (rest[i] & 0xc0) == 0x80;
      c = c << 6 | (rest[i] & 0x3f);
    }
    if (!valid) fail_usage("the regular expression is not UTF-8");
    text_.push_back(c);
    return size;
  }

  [[noreturn]] void refuse(const char* what) const {
    fail_usage("the regular expression has {} at character {}", what, at_);
  }
  bool here(char32_t c) const { return at_ < text_.size() && text_[at_] == c; }
  bool skip(char32_t c) { return here(c) && (++at_, true); }

  Node parse_choice() {
    if (++depth_ > kMaxNesting) refuse("too many groups within one another");
    Node choice{Node::kChoice};
    do choice.children.push_back(parse_sequence());
    while (skip('|'));
    --depth_;
    return choice.children.size() == 1 ? std::move(choice.children[0]) : choice;
  }

  Node parse_sequence() {
    Node sequence{Node::kSequence};
    while (at_ < text_.size() && !here('|') && !here(')')) {
      if (here('$')) {
        if (at_ + 1 != text_.size()) refuse("a $ that is not at the end");
        ++at_;
        break;
      }
      sequence.children.push_back(parse_quantified());
    }
    return sequence;
  }

  Node parse_quantified() {
    Node node = parse_atom();
    while (at_ < text_.size()) {
      int low = 0, high = -1;
      if (skip('*')) {
      } else if (skip('+')) {
        low = 1;
      } else if (skip('?')) {
        high = 1;
      } else if (!take_counts(low, high)) {
        break;
      }
      skip('?');  // lazy or not, the language is the same
      Node repeat{Node::kRepeat, {}, {}, low, high};
      repeat.children.push_back(std::move(node));
      node = std::move(repeat);
      if (++depth_ > kMaxNesting) refuse("too many repetitions within one another");
    }
    return node;
  }

  // {m}, {m,} or {m,n}
  bool take_counts(int& low, int& high) {
    if (!here('{')) return false;
    ++at_;
    low = number();
    high = low;
    if (skip(',')) high = here('}') ? -1 : number();
    if (!skip('}')) refuse("a { that is not a count");
    if (high >= 0 && high < low) refuse("a count that ends below its beginning");
    return true;
  }

  int number() {
    int value = 0;
    const size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = value * 10 + static_cast<int>(text_[at_] - '0');
      if (value > kMaxRepetitions) refuse("a count above 1000");
    }
    if (at_ == begin) refuse("a { that is not a count");
    return value;
  }

  Node parse_atom() {
    const char32_t c = text_[at_];
    if (c == '(') return parse_group();
    if (c == '*' || c == '+' || c == '?') refuse("a quantifier that follows nothing");
    if (c == '{' || c == '}') refuse("a bare { or }");
    if (c == '^') refuse("a ^ that is not at the beginning");
    if (c == '[') return {Node::kCharacter, parse_class()};
    ++at_;
    if (c == '.') return {Node::kCharacter, complement({{'\n', '\n'}})};
    if (c == '\\') return {Node::kCharacter, parse_escape()};
    return {Node::kCharacter, {{c, c}}};
  }

  Node parse_group() {
    ++at_;
    if (skip('?') && !skip(':')) refuse("a group that is not plain");
    Node node = parse_choice();
    if (!skip(')')) refuse("a ( that is not closed");
    return node;
  }

  CodePoints parse_class() {
    ++at_;
    const bool negated = skip('^');
    CodePoints ranges;
    for (bool first = true; first || !here(']'); first = false) {
      if (at_ >= text_.size()) refuse("a [ that is not closed");
      CodePoints low = class_member();
      const bool is_range = here('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (is_range) {
        ++at_;
        const CodePoints high = class_member();
        if (low.size() != 1 || high.size() != 1 || low[0].first != low[0].second ||
            high[0].first != high[0].second || low[0].first > high[0].first)
          refuse("a range in [] that is none");
        low[0].second = high[0].first;
      }
      ranges.insert(ranges.end(), low.begin(), low.end());
    }
    ++at_;
    if (negated) return complement(std::move(ranges));
    sort_and_merge(ranges);
    return ranges;
  }

  CodePoints class_member() {
    if (at_ >= text_.size()) refuse("a [ that is not closed");
    const char32_t c = text_[at_++];
    return c == '\\' ? parse_escape() : CodePoints{{c, c}};
  }

  // Behind the backslash.
  CodePoints parse_escape() {
    if (at_ >= text_.size()) refuse("a backslash at its end");
    const CodePoints digits = {{'0', '9'}}, spaces = {{'\t', '\r'}, {' ', ' '}};
    const CodePoints word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    const char32_t c = text_[at_++];
    switch (c) {
      case 'd':
        return digits;
      case 'D':
        return complement(digits);
      case 'w':
        return word;
      case 'W':
        return complement(word);
      case 's':
        return spaces;
      case 'S':
        return complement(spaces);
      case 'n':
        return {{'\n', '\n'}};
      case 'r':
        return {{'\r', '\r'}};
      case 't':
        return {{'\t', '\t'}};
      case 'f':
        return {{'\f', '\f'}};
      case 'v':
        return {{'\v', '\v'}};
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      default:
        if (c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
          refuse("an escape that is not supported");
        return {{c, c}};
    }
  }

  CodePoints hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = at_ < text_.size() ? text_[at_++] : U' ';
      const char32_t lower = c | 0x20;
      if (c >= '0' && c <= '9')
        value = value * 16 + (c - '0');
      else if (lower >= 'a' && lower <= 'f')
        value = value * 16 + (lower - 'a' + 10);
      else
        refuse("an escape without its digits");
    }
    return {{value, value}};
  }

  std::u32string text_;
  size_t at_ = 0;
  int depth_ = 0;
};

// `excluded`: characters that no class may hold, or null.
Nfa::State add_node(Nfa& nfa, Nfa::State from, const Node& node, const CodePoints* excluded) {
  switch (node.kind) {
    case Node::kCharacter: {
      CodePoints outside = complement(node.ranges);
      outside.push_back({0xd800, 0xdfff});  // surrogates are no characters
      if (excluded) outside.insert(outside.end(), excluded->begin(), excluded->end());
      const CodePoints ranges = complement(std::move(outside));
      if (ranges.empty())
        fail_usage("the regular expression has a character that cannot be written");
      return nfa.add_character(from, ranges);
    }
    case Node::kSequence:
      for (const Node& child : node.children) from = add_node(nfa, from, child, excluded);
      return from;
    case Node::kChoice:
      return nfa.add_choice(from, node.children.size(), [&](Nfa::State begin, size_t i) {
        return add_node(nfa, begin, node.children[i], excluded);
      });
    case Node::kRepeat:
      break;
  }
  return nfa.add_repeated(from, node.low, node.high, [&](Nfa::State begin) {
    return add_node(nfa, begin, node.children[0], excluded);
  });
}

}  // namespace

Nfa regex_language(std::string_view pattern) {
  Nfa nfa;
  nfa.accept(add_node(nfa, nfa.start(), Parser(pattern).parse(), nullptr));
  return nfa;
}

Nfa::State add_json_string_pattern(Nfa& nfa, Nfa::State from, std::string_view pattern) {
  const CodePoints escaped = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
  return add_node(nfa, from, Parser(pattern).parse(), &escaped);
}

Nfa choice_language(std::span<const std::string> texts) {
  if (texts.empty()) fail_usage("expected at least one text to choose from, found none");
  for (const std::string& text : texts)
    if (text.empty()) fail_usage("expected texts to choose from, found an empty one");
  Nfa nfa;
  nfa.accept(nfa.add_choice(nfa.start(), texts.size(), [&](Nfa::State begin, size_t i) {
    return nfa.add_text(begin, texts[i]);
  }));
  return nfa;
}

}  // namespace invar::grammar
