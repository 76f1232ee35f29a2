#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "sampling/grammar/language.h"
#include "sampling/grammar/lark.h"
#include "sampling/grammar/regex.h"

namespace invar::grammar::lark {

namespace {

// The terminals of Lark's grammar "common", each as a regular expression.
struct Common {
  std::string_view name, pattern;
};
constexpr Common kCommon[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9A-Fa-f]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT",
     "[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"},
    {"NUMBER", "(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "\\/\\/[^\\n]*"},
    {"C_COMMENT", "\\/\\*(?:[^*]|\\*+[^*\\/])*\\*+\\/"},
    {"SQL_COMMENT", "--[^\\n]*"},
};

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) { regex::code_points(text, "the grammar"); }

  Grammar parse() {
    for (skip_space(); at_ < text_.size(); skip_space())
      here('%') ? parse_statement() : parse_definition();
    if (!grammar_.definitions.contains("start"))
      fail_usage("expected a rule \"start\" in the grammar, found none");
    return std::move(grammar_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    const auto line = std::count(text_.begin(), text_.begin() + std::ssize(read()), '\n') + 1;
    fail_usage("the grammar has {} in line {}", what, line);
  }
  [[noreturn]] void refuse(std::string_view what, std::string_view name) const {
    refuse(fmt::format("{} {}", what, json::quoted(name)));
  }

  std::string_view read() const { return text_.substr(0, std::min(at_, text_.size())); }
  std::string_view rest() const { return text_.substr(std::min(at_, text_.size())); }
  bool here(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool skip(std::string_view word) {
    if (!rest().starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void expect(std::string_view word) {
    skip_inline();
    if (!skip(word)) refuse(fmt::format("no {} where it needs one", json::quoted(word)));
  }
  void skip_inline() {
    while (here(' ') || here('\t')) ++at_;
  }
  void skip_space() {
    while (at_ < text_.size())
      if (rest().starts_with("//") || here('#'))
        while (at_ < text_.size() && !here('\n')) ++at_;
      else if (here(' ') || here('\t') || here('\r') || here('\n'))
        ++at_;
      else
        break;
  }
  // Empty where there is none.
  std::string take_name() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_name_byte(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  // NAME.PRIORITY: ... ; a ? or ! before a rule's name is of its tree.
  struct Head {
    std::string name;
    bool has_priority = false;
  };
  std::optional<Head> take_head() {
    const size_t begin = at_;
    while (here('?') || here('!')) ++at_;
    Head head{take_name()};
    if (here('{') && !head.name.empty()) refuse("a template, which is not supported:", head.name);
    if (here('.') && !head.name.empty()) {
      head.has_priority = true;
      ++at_;
      if (here('-') || here('+')) ++at_;
      take_name();
    }
    skip_inline();
    if (!head.name.empty() && skip(":")) return head;
    at_ = begin;
    return std::nullopt;
  }
  bool next_begins() {
    const size_t begin = at_;
    const bool begins = here('%') || take_head().has_value();
    at_ = begin;
    return begins;
  }

  void define(const std::string& name, Node body) {
    if (!grammar_.definitions.try_emplace(name, std::move(body)).second)
      refuse("a second definition of", name);
  }

  void parse_definition() {
    const auto head = take_head();
    if (!head) refuse("something that is no rule");
    // A rule's priority only chooses among trees.
    if (head->has_priority && is_terminal(head->name))
      refuse("a priority of a terminal, which is not supported:", head->name);
    define(head->name, parse_choice());
  }

  void parse_statement() {
    ++at_;
    const std::string word = take_name();
    skip_inline();
    if (word == "ignore")
      grammar_.ignored.push_back(parse_choice());
    else if (word == "import")
      parse_import();
    else
      refuse("a statement that is not supported:", "%" + word);
  }

  // common.NAME, common.NAME -> OTHER, or common (NAME, NAME)
  void parse_import() {
    const std::string from = take_name();
    if (from != "common") refuse("an import that is not from \"common\":", from);
    if (skip(".")) {
      const std::string name = take_name();
      skip_inline();
      std::string as = name;
      if (skip("->")) skip_inline(), as = take_name();
      return define(as, common(name));
    }
    expect("(");
    do {
      skip_inline();
      const std::string name = take_name();
      define(name, common(name));
      skip_inline();
    } while (skip(","));
    expect(")");
  }
  Node common(const std::string& name) const {
    const auto* found = std::ranges::find(kCommon, name, &Common::name);
    if (found == std::end(kCommon)) refuse("an import that \"common\" does not have:", name);
    Node one{Node::kSequence}, all{Node::kChoice};
    one.children.push_back({Node::kPattern, std::string(found->pattern)});
    all.children.push_back(std::move(one));
    return all;
  }

  Node parse_choice() {
    if (++depth_ > kMaxNesting) refuse("too many groups within one another");
    Node choice{Node::kChoice};
    do choice.children.push_back(parse_sequence());
    while (skip("|"));
    --depth_;
    return choice;
  }

  Node parse_sequence() {
    Node sequence{Node::kSequence};
    for (skip_space(); at_ < text_.size() && !here('|') && !here(')') && !here(']'); skip_space()) {
      if (next_begins()) break;
      if (skip("->")) {  // the name of a tree
        skip_inline();
        take_name();
        continue;
      }
      sequence.children.push_back(parse_repeated());
    }
    if (depth_ == 1 && (here(')') || here(']'))) refuse("a bracket that nothing opens");
    return sequence;
  }

  Node parse_repeated() {
    Node node = parse_atom();
    skip_inline();
    int32_t low = 0, high = kEndless;
    if (skip("*")) {
    } else if (skip("+")) {
      low = 1;
    } else if (here('?') && !next_begins()) {
      ++at_, high = 1;
    } else if (skip("~")) {
      skip_inline();
      low = high = number();
      skip_inline();
      if (skip("..")) skip_inline(), high = number();
      if (high < low) refuse("a count that ends below its beginning");
    } else {
      return node;
    }
    Node repeat{.kind = Node::kRepeat, .low = low, .high = high};
    repeat.children.push_back(std::move(node));
    return repeat;
  }

  int32_t number() {
    int32_t value = 0;
    const size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = value * 10 + (text_[at_] - '0');
      if (value > kMaxRepetitions) refuse("a count above 100000");
    }
    if (at_ == begin) refuse("a ~ without a count");
    return value;
  }

  Node parse_atom() {
    if (here('"')) return parse_literal();
    if (here('/')) return parse_pattern();
    const bool is_maybe = here('[');
    if (here('(') || is_maybe) {
      ++at_;
      Node group = parse_choice();
      if (!skip(is_maybe ? "]" : ")")) refuse("a bracket that is not closed");
      if (!is_maybe) return group;
      Node repeat{.kind = Node::kRepeat, .low = 0, .high = 1};
      repeat.children.push_back(std::move(group));
      return repeat;
    }
    const std::string name = take_name();
    if (name.empty()) refuse("something that is no part of a rule");
    if (here('{')) refuse("a template, which is not supported:", name);
    return {Node::kName, name};
  }

  // "text", "text"i or "a".."z"
  Node parse_literal() {
    std::string text = parse_text();
    if (skip("i")) return {Node::kPattern, "(?i)" + escaped(text)};
    if (!skip("..")) return {Node::kText, std::move(text)};
    if (!here('"')) refuse("a range without its end");
    return {Node::kRange, std::move(text), parse_text()};
  }

  static std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) {
      if (std::string_view("\\^$.|?*+()[]{}/").find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
    return out;
  }

  std::string parse_text() {
    std::string text;
    for (++at_; !here('"');) {
      if (at_ >= text_.size() || here('\n')) refuse("a text that is not closed");
      const char c = text_[at_++];
      c == '\\' ? add_escape(text) : text.push_back(c);
    }
    ++at_;
    return text;
  }

  // Behind the backslash. One that is none stays as it is.
  void add_escape(std::string& text) {
    constexpr std::string_view kLetters = "nrtf\\\"", kMeant = "\n\r\t\f\\\"";
    if (at_ >= text_.size()) refuse("a text that is not closed");
    const char c = text_[at_++];
    if (const size_t known = kLetters.find(c); known != kLetters.npos)
      text += kMeant[known];
    else if (c == 'x' || c == 'u' || c == 'U')
      add_character(text, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    else
      (text += '\\') += c;
  }
  void add_character(std::string& text, size_t digits) {
    const std::string_view hex = rest().substr(0, digits);
    const bool is_hex = hex.size() == digits && std::ranges::all_of(hex, [](char c) {
                          return std::isxdigit(static_cast<unsigned char>(c));
                        });
    const uint64_t value = is_hex ? std::stoull(std::string(hex), nullptr, 16) : UINT64_MAX;
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
      refuse("an escape that is no character");
    Language language;
    const auto expr = language.character(static_cast<char32_t>(value));
    text += language.text_of(language.node(expr));
    at_ += digits;
  }

  // /pattern/flags
  Node parse_pattern() {
    std::string pattern;
    for (++at_; !here('/'); ++at_) {
      if (at_ >= text_.size()) refuse("a regular expression that is not closed");
      if (here('\\')) pattern += text_[at_++];
      if (at_ < text_.size()) pattern += text_[at_];
    }
    ++at_;
    std::string flags;
    for (; at_ < text_.size() && is_name_byte(text_[at_]); ++at_) {
      const char flag = text_[at_];
      if (std::string_view("ismu").find(flag) == std::string_view::npos)
        refuse("a flag of a regular expression that is not supported:", {&flag, 1});
      flags += flag;
    }
    // m is of ^ and $, and all is Unicode.
    const auto meant = [&](char flag, const char* form) {
      return flags.find(flag) == std::string::npos ? "" : form;
    };
    return {Node::kPattern, fmt::format("{}{}{}", meant('i', "(?i)"), meant('s', "(?s)"), pattern)};
  }

  std::string_view text_;
  Grammar grammar_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

bool is_terminal(std::string_view name) {
  return std::ranges::none_of(name, [](char c) { return c >= 'a' && c <= 'z'; });
}

Grammar parse(std::string_view text) {
  return Parser(text).parse();
}

}  // namespace invar::grammar::lark
