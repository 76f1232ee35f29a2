// A grammar of Lark's as a language of characters: what its terminals may be together, and not
// only how a lexer would cut a text into them.
#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "sampling/grammar/contains.h"
#include "sampling/grammar/intersection.h"
#include "sampling/grammar/json_text.h"
#include "sampling/grammar/languages.h"
#include "sampling/grammar/lark.h"
#include "sampling/grammar/regex.h"

namespace invar::grammar {

namespace {

using Expr = Language::Expr;
using lark::Node;
constexpr size_t kMaxBytes = size_t{1} << 20;

const Node& definition_of(const lark::Grammar& grammar, const std::string& name) {
  const auto found = grammar.definitions.find(name);
  if (found == grammar.definitions.end())
    fail_usage("the grammar uses {}, which it does not define", json::quoted(name));
  return found->second;
}

// Terminals are regular, so that each is a table.
class Terminals {
 public:
  Terminals(Language& language, const lark::Grammar& grammar, const Writing& writing)
      : language_(language), grammar_(grammar), writing_(writing) {
    // The line break before a mark may be another terminal's.
    if (writing_.without.starts_with('\n')) writing_.without.remove_prefix(1);
  }

  // `repeats`: any number of them, or none.
  Expr table_of(const Node& node, bool repeats = false) {
    Language parts(language_.shared_budget());
    Characters characters(parts, writing_.spelling);
    Expr whole = add(characters, node);
    if (repeats) whole = parts.repeat(whole, 0, kEndless);
    std::vector<Part> all = {{whole}};
    if (!writing_.without.empty())
      all.push_back({parts.sequence({characters.anything(), parts.text(writing_.without),
                                     characters.anything()}),
                     true});
    return language_.table(intersection(parts, all, characters.anything()));
  }

 private:
  Expr add(Characters& characters, const Node& node) {
    Language& parts = characters.language();
    parts.budget().spend(1);  // also of what adds nothing: a terminal may stand in many
    switch (node.kind) {
      case Node::kText:
        return text(characters, node.text);
      case Node::kPattern:
        return pattern(characters, node.text);
      case Node::kRange:
        return characters.of({{one(node.text), one(node.last)}});
      case Node::kName:
        return named(characters, node.text);
      case Node::kRepeat:
        return parts.repeat(add(characters, node.children[0]), node.low, node.high);
      default:
        break;
    }
    std::vector<Expr> all;
    for (const Node& child : node.children) all.push_back(add(characters, child));
    return node.kind == Node::kChoice ? parts.choice(all) : parts.sequence(all);
  }

  Expr named(Characters& characters, const std::string& name) {
    if (!lark::is_terminal(name))
      fail_usage("the grammar has a terminal with the rule {} in it", json::quoted(name));
    if (std::ssize(open_) >= kMaxNesting)
      fail_usage(
          "expected at most {} terminals within one another in the grammar, found more at {}",
          kMaxNesting, json::quoted(name));
    if (!open_.insert(name).second)
      fail_usage("the grammar has a terminal that refers to itself: {}", json::quoted(name));
    const Expr expr = add(characters, definition_of(grammar_, name));
    open_.erase(name);
    return expr;
  }

  static Expr text(Characters& characters, std::string_view text) {
    std::vector<Expr> parts;
    for (const char32_t c : regex::code_points(text, "the grammar"))
      parts.push_back(characters.of({{c, c}}));
    return characters.language().sequence(parts);
  }

  static char32_t one(std::string_view text) {
    const std::u32string characters = regex::code_points(text, "the grammar");
    if (characters.size() != 1)
      fail_usage("expected ranges between two characters in the grammar, found {}",
                 json::quoted(text));
    return characters[0];
  }

  // A look beyond a terminal would mean another thing here.
  static Expr pattern(Characters& characters, const std::string& pattern) {
    characters.language().budget().spend(std::ssize(pattern) / 8);
    const regex::Node node = regex::parse(pattern);
    refuse_looks(node, pattern);
    return regex_expression(characters, node, Match::whole);
  }
  static void refuse_looks(const regex::Node& node, const std::string& pattern) {
    const bool is_look = node.kind == regex::Node::kLook || node.kind == regex::Node::kBoundary;
    if (node.kind >= regex::Node::kLook || node.begin_at >= 0 || node.end_at >= 0)
      fail_usage("the grammar's regular expression {} has {}, which is not supported there",
                 json::quoted(pattern), is_look ? "a look-ahead, \\b or \\B" : "^ or $");
    for (const regex::Node& child : node.children) refuse_looks(child, pattern);
  }

  Language& language_;
  const lark::Grammar& grammar_;
  Writing writing_;
  std::set<std::string> open_;
};

class LarkBuilder {
 public:
  LarkBuilder(Language& language, const lark::Grammar& grammar, const Writing& writing)
      : language_(language), grammar_(grammar), terminals_(language, grammar, writing) {
    if (grammar.ignored.empty()) return;
    ignored_ = terminals_.table_of({.kind = Node::kChoice, .children = grammar.ignored}, true);
  }

  Expr build() {
    const Expr root = rule("start");
    for (; !open_.empty(); open_.pop_front()) define(open_.front());
    return before(root, ignored_);
  }

 private:
  Expr before(Expr first, std::optional<Expr> second) {
    return second ? language_.sequence({first, *second}) : first;
  }

  Expr rule(const std::string& name) {
    const auto [at, is_new] = rules_.try_emplace(name, -1);
    if (is_new) {
      at->second = language_.rule(language_.add_rule(name));
      open_.push_back(name);
    }
    return at->second;
  }

  // A rule that begins with itself is what it else may be, and then any number of what stands
  // behind it there.
  void define(const std::string& name) {
    std::vector<Expr> firsts, tails;
    for (const Node& option : definition_of(grammar_, name).children) {
      const std::vector<Node>& parts = option.children;
      const bool is_left = !parts.empty() && parts[0].kind == Node::kName && parts[0].text == name;
      (is_left ? tails : firsts).push_back(sequence(std::span(parts).subspan(is_left ? 1 : 0)));
    }
    Expr body = language_.choice(firsts);
    if (!tails.empty())
      body = language_.sequence({body, language_.repeat(language_.choice(tails), 0, kEndless)});
    language_.define(language_.node(rules_.at(name)).at, body);
  }

  Expr sequence(std::span<const Node> parts) {
    std::vector<Expr> all;
    for (const Node& part : parts) all.push_back(add(part));
    return language_.sequence(all);
  }

  Expr add(const Node& node) {
    if (node.kind == Node::kName && !lark::is_terminal(node.text)) return rule(node.text);
    if (node.kind == Node::kRepeat)
      return language_.repeat(add(node.children[0]), node.low, node.high);
    if (node.kind == Node::kSequence) return sequence(node.children);
    if (node.kind == Node::kChoice) {
      std::vector<Expr> options;
      for (const Node& option : node.children) options.push_back(add(option));
      return language_.choice(options);
    }
    return terminal(node);
  }

  Expr terminal(const Node& node) {
    const auto key = std::tuple(node.kind, node.text, node.last);
    const auto [at, is_new] = known_.try_emplace(key, -1);
    if (is_new) {
      const Expr table = terminals_.table_of(node);
      at->second = ignored_ ? language_.sequence({*ignored_, table}) : table;
    }
    return at->second;
  }

  Language& language_;
  const lark::Grammar& grammar_;
  Terminals terminals_;
  std::optional<Expr> ignored_;
  std::map<std::string, Expr> rules_;
  std::map<std::tuple<Node::Kind, std::string, std::string>, Expr> known_;
  std::deque<std::string> open_;
};

}  // namespace

Expr add_lark(Language& language, std::string_view grammar, const Writing& writing) {
  if (grammar.size() > kMaxBytes)
    fail_usage("the grammar is too large: expected at most {} bytes, found {}", kMaxBytes,
               grammar.size());
  const lark::Grammar parsed = lark::parse(grammar);
  const Expr text = LarkBuilder(language, parsed, writing).build();
  if (writing.without.size() > kMostWordBytes)
    fail_usage(
        "expected marks around a text that a grammar is held to of at most {} bytes, found {}",
        kMostWordBytes, json::quoted(writing.without));
  // No terminal has the mark in it, but several may, side by side.
  if (!writing.without.empty() && may_contain(language, text, writing.without))
    fail_usage(
        "expected a grammar without texts that have {} in them, which ends a text as this model "
        "writes calls, found one whose terminals spell it side by side",
        json::quoted(writing.without));
  return text;
}

Language lark_language(std::string_view grammar) {
  Language language;
  language.finish(add_lark(language, grammar, {Characters::Spelling::plain}));
  return language;
}

}  // namespace invar::grammar
