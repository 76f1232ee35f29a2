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

// The character before a place: part of a word (\w) or not. A text begins behind none, which is
// not.
enum Before { kOther, kWord };
constexpr Before kEither[] = {kOther, kWord};

// The rest of a text, for either character before it.
struct Rest {
  explicit Rest(Expr always) : after{always, always} {}
  Rest(Expr behind_other, Expr behind_word) : after{behind_other, behind_word} {}
  bool asks() const { return after[kOther] != after[kWord]; }

  Expr after[2];
};

bool looks_around(const regex::Node& node) {
  return node.kind == regex::Node::kLook || node.kind == regex::Node::kBoundary ||
         std::any_of(node.children.begin(), node.children.end(), looks_around);
}

bool may_be_empty(const regex::Node& node) {
  const auto& children = node.children;
  if (node.kind == regex::Node::kCharacter) return false;
  if (node.kind == regex::Node::kChoice)
    return std::any_of(children.begin(), children.end(), may_be_empty);
  if (node.kind == regex::Node::kRepeat && node.low == 0) return true;
  return std::all_of(children.begin(), children.end(), may_be_empty);
}

class ExpressionBuilder {
 public:
  ExpressionBuilder(Characters& characters, Match match, Before start = kOther)
      : characters_(characters), language_(characters.language()), match_(match), start_(start) {}

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
    Rest rest = before(parts, Rest(behind));
    if (anywhere && !begins) rest = before({characters_.anything()}, true, rest);
    return rest.after[start_];
  }

  // The parts and then `rest`: from their end, since a look-ahead speaks of all that follows it.
  Rest before(std::span<const regex::Node> parts, Rest rest) {
    size_t end = parts.size();
    for (size_t i = parts.size(); i-- > 0;) {
      if (!looks_around(parts[i])) continue;
      rest = before(parts[i], plain(parts.subspan(i + 1, end - i - 1), rest));
      end = i;
    }
    return plain(parts.first(end), rest);
  }

  Rest before(const regex::Node& node, const Rest& rest) {
    if (node.kind == regex::Node::kSequence) return before(std::span(node.children), rest);
    if (node.kind == regex::Node::kLook) return look(node, rest);
    if (node.kind == regex::Node::kBoundary) return boundary(node, rest);
    std::vector<Expr> options[2];  // of a choice, or of something that may be left out
    const auto add = [&](const Rest& option) {
      for (const Before p : kEither) options[p].push_back(option.after[p]);
    };
    for (const regex::Node& child : node.children) add(before({&child, 1}, rest));
    if (node.kind == regex::Node::kRepeat && node.low == 0) add(rest);
    const Expr behind_other = language_.choice(options[kOther]);
    if (options[kOther] == options[kWord]) return Rest(behind_other);
    return {behind_other, language_.choice(options[kWord])};
  }

  Rest look(const regex::Node& node, const Rest& rest) {
    const auto behind = [&](Before p) {
      ExpressionBuilder builder(characters_, Match::anywhere, p);
      return both(rest.after[p], {builder.outermost(node.children[0], true, false), node.negated});
    };
    const Expr behind_other = behind(kOther);
    if (!rest.asks() && !asks(node.children[0])) return Rest(behind_other);
    return {behind_other, behind(kWord)};
  }

  // A word begins or ends there: a character of a word follows one that is none, or the other way
  // round; negated, neither.
  Rest boundary(const regex::Node& node, const Rest& rest) {
    const Expr word = language_.sequence({characters_.of(regex::word()), characters_.anything()});
    const auto behind = [&](Before p) {
      const bool is_word_next = (p == kWord) == node.negated;
      return both(rest.after[p], {word, !is_word_next});
    };
    return {behind(kOther), behind(kWord)};
  }

  // Whether a character before it may matter.
  static bool asks(const regex::Node& node) {
    return node.kind == regex::Node::kBoundary ||
           std::any_of(node.children.begin(), node.children.end(), asks);
  }

  Expr both(Expr rest, Part other) {
    const Part parts[] = {{rest}, other};
    return language_.table(intersection(language_, parts, characters_.anything()));
  }

  Rest plain(std::span<const regex::Node> nodes, const Rest& rest) {
    std::vector<Expr> parts;
    for (const regex::Node& node : nodes) parts.push_back(plain(node));
    return before(std::move(parts), std::all_of(nodes.begin(), nodes.end(), may_be_empty), rest);
  }

  // Parts whose last character, if any, decides what may follow.
  Rest before(std::vector<Expr> parts, bool may_be_empty, const Rest& rest) {
    if (parts.empty()) return rest;
    if (!rest.asks()) {
      parts.push_back(rest.after[kOther]);
      return Rest(language_.sequence(parts));
    }
    const Expr all = language_.sequence(parts);
    const CodePoints last[] = {complement(regex::word()), regex::word()};
    std::vector<Expr> options;
    for (const Before p : kEither) {
      const Expr ends = language_.sequence({characters_.anything(), characters_.of(last[p])});
      options.push_back(language_.sequence({both(all, {ends}), rest.after[p]}));
    }
    if (!may_be_empty) return Rest(language_.choice(options));
    const auto or_nothing = [&](Before p) {
      return language_.choice({options[kOther], options[kWord], rest.after[p]});
    };
    return {or_nothing(kOther), or_nothing(kWord)};
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
  const Before start_;
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

bool is_in(const Language& language, std::string_view text) {
  Stacks stacks(language);
  int64_t cost = std::ssize(text);
  Stacks::Set set = stacks.enter(language.root(), cost);
  for (const char byte : text)
    set = stacks.closure(stacks.advance(set, static_cast<uint8_t>(byte)), cost);
  language.budget().spend(cost);
  return stacks.accepts(set);
}

bool matches_pattern(const std::string& pattern, const std::string& text, Match match,
                     const Language& whole) {
  Language language(whole.shared_budget());
  Characters characters(language, Characters::Spelling::plain);
  language.finish(regex_expression(characters, regex::parse(pattern), match));
  return is_in(language, text);
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
