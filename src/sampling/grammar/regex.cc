#include "sampling/grammar/regex.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "sampling/grammar/intersection.h"
#include "sampling/grammar/languages.h"
#include "sampling/grammar/stacks.h"

namespace invar::grammar {

namespace {

using Expr = Language::Expr;
using regex::Node;

constexpr int64_t kWorkOfNode = 10;

// The character before a place: none, one that is part of a word (\w), or another.
enum Before { kStart, kOther, kWord };

// The rest of a text, for whatever stands before it.
struct Rest {
  explicit Rest(Expr always) : after{always, always, always} {}
  Rest(Expr at_start, Expr behind_other, Expr behind_word)
      : after{at_start, behind_other, behind_word} {}
  bool asks_of_start() const { return after[kStart] != after[kOther]; }
  bool asks_of_word() const { return after[kOther] != after[kWord]; }
  bool is(Expr always) const {
    return std::all_of(std::begin(after), std::end(after),
                       [&](Expr behind) { return behind == always; });
  }

  Expr after[3];
};

bool has(const Node& node, Node::Kind kind) {
  return node.kind == kind || std::any_of(node.children.begin(), node.children.end(),
                                          [&](const Node& child) { return has(child, kind); });
}

bool looks_around(const Node& node) {
  return node.kind >= Node::kLook ||
         std::any_of(node.children.begin(), node.children.end(), looks_around);
}

int64_t nodes_of(const Node& node) {
  int64_t nodes = 1 + std::ssize(node.ranges) / 4;
  for (const Node& child : node.children) nodes += nodes_of(child);
  return nodes;
}

bool may_be_empty(const Node& node) {
  const auto& children = node.children;
  if (node.kind == Node::kCharacter) return false;
  if (node.kind == Node::kChoice)
    return std::any_of(children.begin(), children.end(), may_be_empty);
  if (node.kind >= Node::kLook || (node.kind == Node::kRepeat && node.low == 0)) return true;
  return std::all_of(children.begin(), children.end(), may_be_empty);
}

// The node without the paths that lead through such an edge.
Node without(const Node& node, Node::Kind edge) {
  if (node.kind == edge) return {Node::kChoice};  // of nothing
  Node out = node;
  for (Node& child : out.children) child = without(child, edge);
  return out;
}

// The one thing in a group of it.
const Node& within_groups(const Node& node) {
  const bool is_group = node.kind == Node::kSequence && node.children.size() == 1;
  return is_group ? within_groups(node.children[0]) : node;
}

class ExpressionBuilder {
 public:
  ExpressionBuilder(Characters& characters, Match match, Before start = kStart)
      : characters_(characters), language_(characters.language()), match_(match), start_(start) {}

  // The expression at the outermost level. `begins` and `ends`: a ^ or $ around it.
  Expr outermost(const Node& node, bool begins, bool ends) {
    if (node.kind == Node::kChoice) return alternatives(node, begins, ends);
    if (node.kind != Node::kSequence) return sequence({&node, 1}, begins, ends);
    begins |= node.begin_at >= 0;
    ends |= node.end_at >= 0;
    const bool is_group = node.children.size() == 1 && (node.children[0].kind == Node::kChoice ||
                                                        node.children[0].kind == Node::kSequence);
    if (is_group) return outermost(node.children[0], begins, ends);
    return sequence(node.children, begins, ends);
  }

 private:
  // Those without a ^ or $ of their own have what may stand around them in common: which of them
  // were met is nothing to remember.
  Expr alternatives(const Node& choice, bool begins, bool ends) {
    Node alike{Node::kChoice};
    std::vector<Expr> options;
    for (const Node& child : choice.children)
      if (has_own_edges(child))
        options.push_back(outermost(child, begins, ends));
      else
        alike.children.push_back(child);
    if (!alike.children.empty()) options.push_back(sequence({&alike, 1}, begins, ends));
    return language_.choice(options);
  }
  static bool has_own_edges(const Node& node) {
    return node.begin_at >= 0 || node.end_at >= 0 ||
           std::any_of(node.children.begin(), node.children.end(), has_own_edges);
  }

  Expr sequence(std::span<const Node> parts, bool begins, bool ends) {
    const bool anywhere = match_ == Match::anywhere;
    const Expr behind = anywhere && !ends ? characters_.anything() : language_.empty();
    Rest rest = before(parts, Rest(behind));
    if (anywhere && !begins) rest = before({characters_.anything()}, true, rest);
    return rest.after[start_];
  }

  // The parts and then `rest`: from their end, since a look-ahead speaks of all that follows it.
  Rest before(std::span<const Node> parts, Rest rest) {
    size_t end = parts.size();
    for (size_t i = parts.size(); i-- > 0;) {
      language_.budget().spend(3 * nodes_of(parts[i]));  // all of it is looked at, here and below
      if (!looks_around(parts[i])) continue;
      rest = before(parts[i], plain(parts.subspan(i + 1, end - i - 1), rest));
      end = i;
    }
    return plain(parts.first(end), rest);
  }

  Rest before(const Node& node, const Rest& rest) {
    language_.budget().spend(1);
    if (rest.is(language_.nothing())) return rest;
    if (node.kind == Node::kSequence) return before(std::span(node.children), rest);
    if (node.kind == Node::kLook) return look(node, rest);
    if (node.kind == Node::kBoundary) return boundary(node, rest);
    if (node.kind == Node::kBegin)
      return {rest.after[kStart], language_.nothing(), language_.nothing()};
    if (node.kind == Node::kEnd) return end(rest);
    if (node.kind == Node::kRepeat && node.high != 1) return repeated(node, rest);
    std::vector<Rest> options;  // of a choice, or of something that may be left out
    for (const Node& child : node.children) options.push_back(before({&child, 1}, rest));
    if (node.kind == Node::kRepeat && node.low == 0) options.push_back(rest);
    return any_of(options);
  }

  // Asks `make` for each of what may stand before it; where that cannot matter, for kOther alone.
  template <typename Make>
  static Rest of_each(bool asks_of_start, bool asks_of_word, const Make& make) {
    const Expr other = make(kOther);
    return {asks_of_start ? make(kStart) : other, other, asks_of_word ? make(kWord) : other};
  }

  Rest any_of(const std::vector<Rest>& options) {
    language_.budget().spend(std::ssize(options));
    const auto make = [&](Before p) {
      std::vector<Expr> all;
      for (const Rest& option : options) all.push_back(option.after[p]);
      return language_.choice(all);
    };
    return of_each(std::any_of(options.begin(), options.end(), std::mem_fn(&Rest::asks_of_start)),
                   std::any_of(options.begin(), options.end(), std::mem_fn(&Rest::asks_of_word)),
                   make);
  }

  Rest look(const Node& node, const Rest& rest) {
    const Node& what = node.children[0];
    const auto behind = [&](Before p) {
      ExpressionBuilder builder(characters_, Match::anywhere, p);
      return both(rest.after[p], {builder.outermost(what, true, false), node.negated});
    };
    return of_each(rest.asks_of_start() || has(what, Node::kBegin),
                   rest.asks_of_word() || has(what, Node::kBoundary), behind);
  }

  // A word begins or ends there: a character of a word follows one that is none, or the other way
  // round; negated, neither.
  Rest boundary(const Node& node, const Rest& rest) {
    const Expr word = language_.sequence({characters_.of(regex::word()), characters_.anything()});
    const auto behind = [&](Before p) {
      const bool is_word_next = (p == kWord) == node.negated;
      return both(rest.after[p], {word, !is_word_next});
    };
    return of_each(rest.asks_of_start(), true, behind);
  }

  // Nothing follows.
  Rest end(const Rest& rest) {
    return of_each(rest.asks_of_start(), rest.asks_of_word(), [&](Before p) {
      language_.finish(rest.after[p]);
      return language_.can_be_empty(rest.after[p]) ? language_.empty() : language_.nothing();
    });
  }

  // A ^ is met the first time alone, and a $ the last time, unless other times match the empty text
  // there.
  Rest repeated(const Node& node, const Rest& rest) {
    if (node.high == 0) return rest;
    const Node& part = node.children[0];
    if (has(part, Node::kLook)) return characters_without(node, rest);
    if (has(part, Node::kBoundary))
      fail_usage("the regular expression has a \\b or \\B that is repeated");
    const bool begins = has(part, Node::kBegin);
    language_.budget().spend(2 * kWorkOfNode * nodes_of(part));  // it is copied
    Node more{Node::kRepeat,
              {},
              {without(part, begins ? Node::kBegin : Node::kEnd)},
              std::max(node.low - 1, 0),
              node.high < 0 ? -1 : node.high - 1};
    const auto times = [&](const Rest& behind) {
      return begins ? before({&part, 1}, before({&more, 1}, behind))
                    : before({&more, 1}, before({&part, 1}, behind));
    };
    std::vector<Rest> options{times(rest)};
    if (node.low == 0) options.push_back(rest);
    if (begins && node.low > 1 && may_be_empty(part))
      options.emplace_back(end(rest).after[kStart], language_.nothing(), language_.nothing());
    if (node.low > 1 && may_be_empty(begins ? without(part, Node::kEnd) : part)) {
      more.low = 0;
      more.high = node.low - 2;
      const Rest fewer = times(begins ? rest : end(rest));
      options.push_back(begins ? Rest(fewer.after[kStart], language_.nothing(), language_.nothing())
                               : fewer);
    }
    return any_of(options);
  }

  // ((?!x).)* before the end: characters, before none of which an x begins.
  Rest characters_without(const Node& node, const Rest& rest) {
    const Node& part = within_groups(node.children[0]);
    const bool is_pair = part.kind == Node::kSequence && part.children.size() == 2;
    const Node& look = is_pair ? within_groups(part.children[0]) : part;
    const Node& one = is_pair ? within_groups(part.children[1]) : part;
    const bool is_last = rest.is(language_.empty());
    if (look.kind != Node::kLook || !look.negated || one.kind != Node::kCharacter || !is_last ||
        has(look, Node::kBegin) || has(look, Node::kBoundary))
      fail_usage("the regular expression has a look-ahead that is repeated");
    ExpressionBuilder builder(characters_, Match::anywhere, kOther);
    const Expr begun = both(builder.outermost(look.children[0], true, false), {some()});
    const Expr all = language_.repeat(characters_.of(one.ranges), node.low,
                                      node.high < 0 ? kEndless : node.high);
    return Rest(both(all, {language_.sequence({characters_.anything(), begun}), true}));
  }

  // One character at least.
  Expr some() { return language_.sequence({characters_.any(), characters_.anything()}); }

  Expr both(Expr rest, Part other) {
    const Part parts[] = {{rest}, other};
    return language_.table(intersection(language_, parts, characters_.anything()));
  }

  Rest plain(std::span<const Node> nodes, const Rest& rest) {
    std::vector<Expr> parts;
    for (const Node& node : nodes) parts.push_back(plain(node));
    return before(std::move(parts), std::all_of(nodes.begin(), nodes.end(), may_be_empty), rest);
  }

  // Parts whose last character, if any, decides what may follow.
  Rest before(std::vector<Expr> parts, bool may_be_empty, const Rest& rest) {
    if (parts.empty()) return rest;
    if (!rest.asks_of_start() && !rest.asks_of_word()) {
      parts.push_back(rest.after[kOther]);
      return Rest(language_.sequence(parts));
    }
    const Expr behind = behind_characters(language_.sequence(parts), may_be_empty, rest);
    if (!may_be_empty) return Rest(behind);
    return of_each(rest.asks_of_start(), rest.asks_of_word(), [&](Before p) {
      return language_.choice({behind, rest.after[p]});
    });
  }

  // The texts of `all` that have a character, and the rest that may follow them.
  Expr behind_characters(Expr all, bool may_be_empty, const Rest& rest) {
    if (!rest.asks_of_word()) {
      const Expr behind = rest.after[kOther];
      if (behind == language_.nothing()) return behind;
      return language_.sequence({may_be_empty ? both(all, {some()}) : all, behind});
    }
    const CodePoints last[] = {complement(regex::word()), regex::word()};
    std::vector<Expr> options;
    for (const Before p : {kOther, kWord}) {
      const Expr ends =
          language_.sequence({characters_.anything(), characters_.of(last[p - kOther])});
      options.push_back(language_.sequence({both(all, {ends}), rest.after[p]}));
    }
    return language_.choice(options);
  }

  Expr plain(const Node& node) {
    language_.budget().spend(1);
    if (node.kind == Node::kCharacter) return characters_.of(node.ranges);
    std::vector<Expr> parts;
    for (const Node& child : node.children) parts.push_back(plain(child));
    if (node.kind == Node::kSequence) return language_.sequence(parts);
    if (node.kind == Node::kChoice) return language_.choice(parts);
    return language_.repeat(parts[0], node.low, node.high < 0 ? kEndless : node.high);
  }

  Characters& characters_;
  Language& language_;
  const Match match_;
  const Before start_;
};

}  // namespace

Expr regex_expression(Characters& characters, const regex::Node& pattern, Match match) {
  characters.language().budget().spend(20 + kWorkOfNode * nodes_of(pattern));
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
