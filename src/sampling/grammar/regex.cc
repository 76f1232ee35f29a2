#include "sampling/grammar/regex.h"

#include <algorithm>

#include "base/error.h"
#include "sampling/grammar/intersection.h"
#include "sampling/grammar/languages.h"
#include "sampling/grammar/stacks.h"

namespace invar::grammar {

namespace {

using Expr = Language::Expr;

CodePoints without(const CodePoints& ranges, const CodePoints& others) {
  CodePoints outside = complement(ranges);
  outside.insert(outside.end(), others.begin(), others.end());
  return complement(std::move(outside));
}

bool holds(const CodePoints& ranges, char32_t c) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const auto& range) { return range.first <= c && c <= range.second; });
}

}  // namespace

Expr Characters::of(const CodePoints& ranges) {
  const auto known = known_.find(ranges);
  if (known != known_.end()) return known->second;
  if (ranges.size() == 1 && ranges[0].first == ranges[0].second && is_itself(ranges[0].first))
    return known_[ranges] = language_.character(ranges[0].first);
  const CodePoints plain = without(ranges, {{0xd800, 0xdfff}});  // surrogates are no characters
  // As a table: all the ways to write it are one thing to follow.
  Language language(language_.shared_budget());
  const Part part{spelling_ == Spelling::plain ? language.character(plain) : json(language, plain)};
  if (part.expr == language.nothing())
    fail_usage("the regular expression has a character that cannot be written");
  const Expr any = language.repeat(part.expr, 0, kEndless);
  return known_[ranges] = language_.table(intersection(language, {&part, 1}, any));
}

// Whether there is no other way to write a character.
bool Characters::is_itself(char32_t c) const {
  if (c >= 0xd800 && c <= 0xdfff) return false;
  return spelling_ == Spelling::plain || (c >= 0x20 && c != '"' && c != '\\');
}

// As itself or with the escape of one letter; the control characters that have none, by number.
Expr Characters::json(Language& language, const CodePoints& ranges) {
  static constexpr std::pair<char32_t, char> kEscapes[] = {
      {'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
  ByteSet letters{};
  for (const auto& [c, letter] : kEscapes)
    if (holds(ranges, c)) add_to(letters, letter, letter);
  std::vector<Expr> options;
  options.push_back(language.character(without(ranges, {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}})));
  options.push_back(language.sequence({language.text("\\"), language.bytes(letters)}));
  for (char32_t c = 0; c < 0x20; ++c) {
    const bool has_letter = c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t';
    if (has_letter || !holds(ranges, c)) continue;
    ByteSet last{};
    for (const char digit : {"0123456789abcdef"[c % 16], "0123456789ABCDEF"[c % 16]})
      add_to(last, digit, digit);
    const Expr number = language.text(c < 16 ? "\\u000" : "\\u001");
    options.push_back(language.sequence({number, language.bytes(last)}));
  }
  return language.choice(options);
}

namespace {

class ExpressionBuilder {
 public:
  ExpressionBuilder(Characters& characters, Match match)
      : characters_(characters), language_(characters.language()), match_(match) {}

  // The expression at the outermost level. `begins` and `ends`: a ^ or $ around it.
  Expr outermost(const regex::Node& node, bool begins, bool ends) {
    if (node.kind == regex::Node::kChoice) {
      std::vector<Expr> options;
      for (const regex::Node& child : node.children)
        options.push_back(outermost(child, begins, ends));
      return language_.choice(options);
    }
    if (node.kind != regex::Node::kSequence) return sequence({&node, 1}, begins, ends);
    begins |= node.begin_at >= 0;
    ends |= node.end_at >= 0;
    const bool is_group =
        node.children.size() == 1 && (node.children[0].kind == regex::Node::kChoice ||
                                      node.children[0].kind == regex::Node::kSequence);
    if (is_group) return outermost(node.children[0], begins, ends);
    return sequence(node.children, begins, ends);
  }

 private:
  Expr sequence(std::span<const regex::Node> parts, bool begins, bool ends) {
    const bool anywhere = match_ == Match::anywhere;
    const Expr behind = anywhere && !ends ? characters_.anything() : language_.empty();
    const Expr rest = before(parts, behind);
    return anywhere && !begins ? language_.sequence({characters_.anything(), rest}) : rest;
  }

  static bool has_look(const regex::Node& node) {
    return node.kind == regex::Node::kLook ||
           std::any_of(node.children.begin(), node.children.end(), has_look);
  }

  // The parts and then `rest`: from their end, since a look-ahead speaks of all that follows it.
  Expr before(std::span<const regex::Node> parts, Expr rest) {
    std::vector<Expr> reversed{rest};
    for (size_t i = parts.size(); i-- > 0;) {
      if (has_look(parts[i]))
        reversed = {before(parts[i], in_order(reversed))};
      else
        reversed.push_back(plain(parts[i]));
    }
    return in_order(reversed);
  }

  Expr before(const regex::Node& node, Expr rest) {
    if (node.kind == regex::Node::kSequence) return before(std::span(node.children), rest);
    if (node.kind == regex::Node::kLook) {
      const Expr look =
          ExpressionBuilder(characters_, Match::anywhere).outermost(node.children[0], true, false);
      const Part both[] = {{rest}, {look, node.negated}};
      return language_.table(intersection(language_, both, characters_.anything()));
    }
    std::vector<Expr> options;  // of a choice, or of something that may be left out
    for (const regex::Node& child : node.children) options.push_back(before({&child, 1}, rest));
    if (node.kind == regex::Node::kRepeat && node.low == 0) options.push_back(rest);
    return language_.choice(options);
  }

  Expr in_order(std::vector<Expr> reversed) {
    std::reverse(reversed.begin(), reversed.end());
    return language_.sequence(reversed);
  }

  Expr plain(const regex::Node& node) {
    if (node.kind == regex::Node::kCharacter) return characters_.of(node.ranges);
    std::vector<Expr> parts;
    for (const regex::Node& child : node.children) parts.push_back(plain(child));
    if (node.kind == regex::Node::kSequence) return language_.sequence(parts);
    if (node.kind == regex::Node::kChoice) return language_.choice(parts);
    return language_.repeat(parts[0], node.low, node.high < 0 ? kEndless : node.high);
  }

  Characters& characters_;
  Language& language_;
  const Match match_;
};

}  // namespace

namespace {

int64_t nodes_of(const regex::Node& node) {
  int64_t nodes = 1 + std::ssize(node.ranges) / 4;
  for (const regex::Node& child : node.children) nodes += nodes_of(child);
  return nodes;
}

}  // namespace

Expr regex_expression(Characters& characters, const regex::Node& pattern, Match match) {
  characters.language().budget().spend(20 + 10 * nodes_of(pattern));
  return ExpressionBuilder(characters, match).outermost(pattern, false, false);
}

bool matches_pattern(const std::string& pattern, const std::string& text, Match match,
                     const Language& whole) {
  Language language(whole.shared_budget());
  Characters characters(language, Characters::Spelling::plain);
  language.finish(regex_expression(characters, regex::parse(pattern), match));
  Stacks stacks(language);
  int64_t cost = std::ssize(text);
  Stacks::Set set = stacks.enter(language.root(), cost);
  for (const char byte : text)
    set = stacks.closure(stacks.advance(set, static_cast<uint8_t>(byte)), cost);
  language.budget().spend(cost);
  return stacks.accepts(set);
}

Language regex_language(std::string_view pattern) {
  Language language;
  Characters characters(language, Characters::Spelling::plain);
  language.finish(regex_expression(characters, regex::parse(pattern), Match::whole));
  return language;
}

Language choice_language(std::span<const std::string> texts) {
  if (texts.empty()) fail_usage("expected at least one text to choose from, found none");
  for (const std::string& text : texts)
    if (text.empty()) fail_usage("expected texts to choose from, found an empty one");
  Language language;
  language.finish(language.texts(texts));
  return language;
}

}  // namespace invar::grammar
