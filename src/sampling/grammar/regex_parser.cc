#include <algorithm>

#include "base/error.h"
#include "sampling/grammar/regex.h"
#include "sampling/grammar/unicode.h"

namespace invar::grammar {

namespace {

constexpr char32_t kLast = 0x10ffff;
// Counters within counters are alternatives that all have to be followed: so many at most.
constexpr int64_t kMaxUnrolled = 200'000;

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

}  // namespace

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

namespace regex {

CodePoints word() {
  return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
}

std::u32string code_points(std::string_view text, const char* what) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const auto byte = static_cast<unsigned char>(rest[0]);
    const size_t size = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    char32_t c = size == 1 ? byte : byte & (0xff >> (size + 1));
    bool valid = byte < 0x80 || (byte >= 0xc2 && byte < 0xf5 && rest.size() >= size);
    for (size_t i = 1; valid && i < size; ++i) {
      valid = (rest[i] & 0xc0) == 0x80;
      c = c << 6 | (rest[i] & 0x3f);
    }
    if (!valid) fail_usage("{} is not UTF-8", what);
    out.push_back(c);
    at += size;
  }
  return out;
}

namespace {

class Parser {
 public:
  explicit Parser(std::string_view pattern)
      : text_(code_points(pattern, "the regular expression")) {}

  Node parse() {
    Node node = parse_choice();
    if (at_ < text_.size()) refuse("a ) that nothing opens");
    move_edges_in(node, true);
    unrolled(node);
    return node;
  }

 private:
  [[noreturn]] void refuse(const char* what) const { refuse(what, at_); }
  [[noreturn]] static void refuse(const char* what, size_t at) {
    fail_usage("the regular expression has {} at character {}", what, at);
  }

  // A ^ and a $ within other things are not around the whole, nor is a ^ that a look-ahead begins
  // with.
  static void move_edges_in(Node& node, bool is_outermost, bool is_look = false) {
    if (node.end_at >= 0 && !is_outermost) {
      node.children.push_back({Node::kEnd});
      node.end_at = -1;
    }
    if (node.begin_at >= 0 && (!is_outermost || is_look)) {
      node.children.insert(node.children.begin(), {Node::kBegin});
      node.begin_at = -1;
    }
    const bool is_alone = node.kind == Node::kChoice || node.children.size() == 1;
    for (Node& child : node.children) {
      const bool is_group = child.kind == Node::kChoice || child.kind == Node::kSequence;
      const bool is_outer = node.kind == Node::kLook ||
                            (is_outermost && node.kind != Node::kRepeat && is_alone && is_group);
      move_edges_in(child, is_outer, is_look || node.kind == Node::kLook);
    }
  }

  struct Size {
    int64_t states;
    bool has_counter;
  };
  static Size unrolled(const Node& node) {
    Size size{1, false};
    for (const Node& child : node.children) {
      const Size one = unrolled(child);
      size = {size.states + one.states, size.has_counter || one.has_counter};
    }
    if (node.kind != Node::kRepeat) return size;
    const int64_t times = std::max({node.low, node.high, 1});
    if (size.has_counter && size.states * times > kMaxUnrolled)
      fail_usage(
          "the grammar is too large: the regular expression has counts within counts that need "
          "more than {} states",
          kMaxUnrolled);
    return {std::min(size.states * times, int64_t{1} << 40), size.has_counter || times > 1};
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
    while (take_flag()) {
    }
    if (here('^')) sequence.begin_at = static_cast<int>(at_++);
    while (at_ < text_.size() && !here('|') && !here(')')) {
      if (here('$')) {
        const int at = static_cast<int>(at_++);
        const bool is_last = at_ == text_.size() || here('|') || here(')');
        if (!is_last) sequence.children.push_back({Node::kEnd});
        if (is_last) sequence.end_at = at;
      } else if (!take_flag())
        sequence.children.push_back(parse_quantified());
    }
    return sequence;
  }

  Node parse_quantified() {
    Node node = parse_atom();
    for (int nesting = 0; at_ < text_.size(); ++nesting) {
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
      if (node.kind >= Node::kLook) refuse("a quantifier that follows nothing");
      Node repeat{Node::kRepeat, {}, {}, low, high};
      repeat.children.push_back(std::move(node));
      node = std::move(repeat);
      if (nesting > kMaxNesting) refuse("too many repetitions within one another");
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
      if (value > kMaxRepetitions) refuse("a count above 100000");
    }
    if (at_ == begin) refuse("a { that is not a count");
    return value;
  }

  Node parse_atom() {
    const char32_t c = text_[at_];
    if (c == '(') return parse_group();
    if (c == '*' || c == '+' || c == '?') refuse("a quantifier that follows nothing");
    if (c == '{') refuse("a bare {");
    if (c == '^') return ++at_, Node{Node::kBegin};
    if (c == '[') return {Node::kCharacter, parse_class()};
    ++at_;
    if (c == '.')
      return {Node::kCharacter, complement(any_line_ ? CodePoints() : CodePoints{{'\n', '\n'}})};
    if (c == '\\' && (here('b') || here('B')))
      return {Node::kBoundary, {}, {}, 0, 0, -1, -1, text_[at_++] == 'B'};
    if (c == '\\') return {Node::kCharacter, in_case(parse_escape())};
    return {Node::kCharacter, in_case({{c, c}})};
  }

  // (?i): what follows in its group has either case; (?s): a point is also a line's end.
  bool take_flag() {
    const std::u32string_view rest = std::u32string_view(text_).substr(at_);
    const bool any_case = rest.starts_with(U"(?i)");
    if (!any_case && !rest.starts_with(U"(?s)")) return false;
    at_ += 4;
    (any_case ? any_case_ : any_line_) = true;
    return true;
  }
  CodePoints in_case(CodePoints ranges) const {
    return any_case_ ? with_other_cases(ranges) : ranges;
  }

  // The name of a group says nothing. Behind (? or (?P.
  bool skip_name() {
    if (!here('<') || (at_ + 1 < text_.size() && (text_[at_ + 1] == '=' || text_[at_ + 1] == '!')))
      return false;
    const size_t end = text_.find(U'>', at_);
    if (end == text_.npos) return false;
    at_ = end + 1;
    return true;
  }

  Node parse_group() {
    const int begin = static_cast<int>(at_++);
    Node look{Node::kLook, {}, {}, begin};
    bool is_look = false;
    const bool case_before = any_case_, line_before = any_line_;
    if (skip('?')) {
      look.negated = here('!');
      is_look = skip('=') || skip('!');
      any_case_ |= !is_look && skip('i');
      skip('P');
      if (!is_look && !skip_name() && !skip(':')) refuse("a group that is not plain");
    }
    Node node = parse_choice();
    any_case_ = case_before;
    any_line_ = line_before;
    if (!skip(')')) refuse("a ( that is not closed");
    if (!is_look) return node;
    look.children.push_back(std::move(node));
    return look;
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
    ranges = in_case(std::move(ranges));
    if (negated) return complement(std::move(ranges));
    sort_and_merge(ranges);
    return ranges;
  }

  CodePoints class_member() {
    if (at_ >= text_.size()) refuse("a [ that is not closed");
    const char32_t c = text_[at_++];
    if (c == '\\' && skip('b')) return {{'\b', '\b'}};
    return c == '\\' ? parse_escape() : CodePoints{{c, c}};
  }

  // Behind the backslash.
  CodePoints parse_escape() {
    if (at_ >= text_.size()) refuse("a backslash at its end");
    const CodePoints digits = {{'0', '9'}}, spaces = {{'\t', '\r'}, {' ', ' '}};
    const char32_t c = text_[at_++];
    switch (c) {
      case 'd':
        return digits;
      case 'D':
        return complement(digits);
      case 'w':
        return word();
      case 'W':
        return complement(word());
      case 's':
        return spaces;
      case 'S':
        return complement(spaces);
      case 'p':
        return property();
      case 'P':
        return complement(property());
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

  // L or {Letter}
  CodePoints property() {
    std::string name;
    const bool is_long = skip('{');
    for (; at_ < text_.size() && text_[at_] < 0x80 && text_[at_] != '}'; ++at_) {
      name += static_cast<char>(text_[at_]);
      if (!is_long) break;
    }
    if (!is_long) ++at_;
    auto found = characters_of(name);
    if ((is_long && !skip('}')) || !found) refuse("a \\p that names no characters of Unicode");
    return std::move(*found);
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
  bool any_case_ = false, any_line_ = false;
};

}  // namespace

Node parse(std::string_view pattern) {
  return Parser(pattern).parse();
}

}  // namespace regex

}  // namespace invar::grammar
