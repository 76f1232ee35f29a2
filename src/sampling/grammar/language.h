// A language of bytes as a grammar: expressions and named rules that may refer to one another.
// Repetitions are counters and rules are a stack (Automaton), so that neither is unrolled.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sampling/grammar/budget.h"
#include "sampling/grammar/table.h"

namespace invar::grammar {

using CodePoints = std::vector<std::pair<char32_t, char32_t>>;  // ranges, ends included
using ByteSet = std::array<uint64_t, 4>;                        // bit b % 64 of word b / 64

constexpr int32_t kEndless = INT32_MAX;  // as often as one likes

class SchemaCheck;

class Language {
 public:
  using Expr = int32_t;
  // The most bytes of a language; more is a UsageError.
  static constexpr size_t kMaxBytes = size_t{4} << 20;
  // How deep rules may lie within one another, but for what a rule ends with. Deeper texts are not
  // part of the language.
  static constexpr int32_t kMaxDepth = 64;

  enum class Kind : uint8_t { nothing, empty, text, bytes, sequence, choice, repeat, rule, table };
  struct Node {
    Kind kind;
    // Rules within one another that a text of it needs, and that the empty text needs; kNever: it
    // has none.
    int32_t depth = 0, empty_depth = 0;
    int32_t low = 0, high = 0;  // of a repetition; characters at most of a table in `high`
    int32_t at = 0, count = 0;  // into texts, sets, children or tables; a rule's number
  };
  static constexpr int32_t kNever = kMaxDepth + 1;

  Language() : Language(std::make_shared<Budget>()) {}
  // A part of the work for another language is made from that one's budget.
  explicit Language(std::shared_ptr<Budget> budget);

  Budget& budget() const { return *budget_; }
  const std::shared_ptr<Budget>& shared_budget() const { return budget_; }
  Expr nothing() const { return 0; }
  Expr empty() const { return 1; }
  Expr text(std::string_view bytes);
  Expr bytes(const ByteSet& set);
  Expr byte_range(uint8_t low, uint8_t high);
  // A character, and one of the ranges, as UTF-8. Surrogates have none.
  Expr character(char32_t c);
  Expr character(const CodePoints& ranges);
  Expr sequence(std::span<const Expr> parts);
  Expr sequence(std::initializer_list<Expr> parts) { return sequence(std::span(parts)); }
  Expr choice(std::span<const Expr> options);
  Expr choice(std::initializer_list<Expr> options) { return choice(std::span(options)); }
  Expr repeat(Expr part, int32_t low, int32_t high);
  Expr optional(Expr part) { return repeat(part, 0, 1); }
  // The table's texts of at most so many characters.
  Expr table(Table table, int32_t most_characters = kEndless);
  Expr texts(std::span<const std::string> texts) { return table(table_of_texts(texts)); }

  int32_t add_rule(std::string name);
  void define(int32_t rule, Expr body) { bodies_[rule] = body; }
  Expr rule(int32_t rule);

  // The language is what `root` derives; it may have no text. Throws UsageError where a rule begins
  // with itself.
  void finish(Expr root);
  Expr root() const { return root_; }

  const Node& node(Expr expr) const { return nodes_[expr]; }
  bool can_be_empty(Expr expr) const { return nodes_[expr].empty_depth <= kMaxDepth; }
  size_t size() const { return nodes_.size(); }
  size_t bytes() const { return bytes_; }
  std::string_view text_of(const Node& node) const {
    return std::string_view(text_).substr(node.at, node.count);
  }
  std::span<const Expr> children(const Node& node) const {
    return std::span(children_).subspan(node.at, node.count);
  }
  const ByteSet& set_of(const Node& node) const { return sets_[node.at]; }
  const Table& table_of(const Node& node) const { return tables_[node.at]; }
  Expr body(const Node& node) const { return bodies_[node.at]; }
  size_t rules() const { return bodies_.size(); }

  // Adds a check of a text that has ended; null: none.
  void check_at_end(std::shared_ptr<const SchemaCheck> check) { check_ = std::move(check); }
  const std::shared_ptr<const SchemaCheck>& check() const { return check_; }

 private:
  Expr add(const Node& node, size_t more_bytes = 0);
  Expr add_list(Kind kind, std::span<const Expr> parts);
  bool measure(Node& node) const;
  void refuse_left_recursion() const;
  std::vector<int32_t> rules_at_beginning(Expr expr) const;

  std::shared_ptr<Budget> budget_;
  std::vector<Node> nodes_;
  std::vector<Expr> children_, bodies_;
  std::vector<std::string> names_;
  std::vector<ByteSet> sets_;
  std::vector<Table> tables_;
  std::string text_;
  std::shared_ptr<const SchemaCheck> check_;
  size_t bytes_ = 0;
  Expr root_ = 0;
};

inline bool has(const ByteSet& set, uint8_t byte) {
  return set[byte / 64] >> (byte % 64) & 1;
}
inline void add_to(ByteSet& set, unsigned low, unsigned high) {
  for (unsigned b = low; b <= high; ++b) set[b / 64] |= uint64_t{1} << (b % 64);
}

}  // namespace invar::grammar
