// A text's bytes lead from how much of the word the text before ends with to how much the text
// behind ends with; the whole word stays whole. The pairs that an expression's texts lead between
// are a small matrix, and those of the rules are the least that their bodies agree with.
#include "sampling/grammar/contains.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <string>

#include "base/check.h"

namespace invar::grammar {

namespace {

using Expr = Language::Expr;
using Kind = Language::Kind;
using Bits = uint64_t;

class WordSearch {
 public:
  WordSearch(const Language& language, std::string_view word)
      : language_(language), word_(word), states_(word.size() + 1) {
    CHECK(!word.empty() && word.size() <= kMostWordBytes,
          "a matrix has a bit for each of its bytes");
    for (size_t state = 0; state < states_; ++state)
      for (size_t byte = 0; byte < 256; ++byte) next_[state][byte] = behind(state, byte);
  }

  // Rules that are met later are looked at first: what a rule needs is mostly known then.
  bool contains(Expr root) {
    Matrix whole = matrix(root);
    for (size_t i = 0; i < met_.size(); ++i) matrix(body_of(i));  // meets the others
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = met_.size(); i-- > 0;) {
        const Matrix found = matrix(body_of(i));
        Matrix& known = rules_.at(language_.node(met_[i]).at);
        changed |= known != found;
        known = found;
      }
      whole = matrix(root);
    }
    return whole[0] >> word_.size() & 1;
  }

 private:
  // Bit j of row i: some text leads from i to j.
  using Matrix = std::array<Bits, kMostWordBytes + 1>;

  uint8_t behind(size_t state, size_t byte) const {
    if (state == word_.size()) return static_cast<uint8_t>(state);
    const std::string read = std::string(word_.substr(0, state)) + static_cast<char>(byte);
    size_t size = read.size();
    while (!read.ends_with(word_.substr(0, size))) --size;
    return static_cast<uint8_t>(size);
  }

  Expr body_of(size_t met) const { return language_.body(language_.node(met_[met])); }

  Matrix unit() const {
    Matrix one{};
    for (size_t i = 0; i < states_; ++i) one[i] = Bits{1} << i;
    return one;
  }
  Matrix product(const Matrix& a, const Matrix& b) const {
    language_.budget().spend(static_cast<int64_t>(states_) / 8 + 1);
    Matrix both{};
    for (size_t i = 0; i < states_; ++i)
      for (Bits left = a[i]; left != 0; left &= left - 1) both[i] |= b[std::countr_zero(left)];
    return both;
  }
  static Matrix sum(Matrix a, const Matrix& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] |= b[i];
    return a;
  }
  Matrix power(Matrix base, int32_t times) const {
    Matrix all = unit();
    for (; times > 0; times /= 2, base = product(base, base))
      if (times % 2) all = product(all, base);
    return all;
  }
  // Repetitions that may be left out lead nowhere else once there are as many as states.
  Matrix repeated(const Matrix& part, int32_t low, int32_t high) const {
    const int32_t more = std::min(high - low, static_cast<int32_t>(states_));
    return product(power(part, low), power(sum(unit(), part), more));
  }

  // With what is known of the rules so far. Expressions are trees between rules and tables.
  Matrix matrix(Expr expr) {
    language_.budget().spend(static_cast<int64_t>(states_) / 8 + 1);
    const Language::Node& node = language_.node(expr);
    Matrix all{};
    switch (node.kind) {
      case Kind::nothing:
        break;
      case Kind::empty:
        return unit();
      case Kind::sequence:
        all = unit();
        for (const Expr part : language_.children(node)) all = product(all, matrix(part));
        break;
      case Kind::choice:
        for (const Expr option : language_.children(node)) all = sum(all, matrix(option));
        break;
      case Kind::repeat:
        return repeated(matrix(node.at), node.low, node.high);
      case Kind::rule:
        return of_rule(expr, node.at);
      case Kind::table:
        return of_table(expr, language_.table_of(node));
      case Kind::text:
        all = unit();
        for (const char byte : language_.text_of(node))
          all = product(all, step(static_cast<uint8_t>(byte), static_cast<uint8_t>(byte)));
        break;
      case Kind::bytes:
        for (unsigned byte = 0; byte < 256; ++byte)
          if (has(language_.set_of(node), static_cast<uint8_t>(byte)))
            all = sum(all, step(static_cast<uint8_t>(byte), static_cast<uint8_t>(byte)));
        break;
    }
    return all;
  }

  Matrix of_rule(Expr expr, int32_t rule) {
    const auto [known, is_new] = rules_.try_emplace(rule);
    if (is_new) met_.push_back(expr);
    return known->second;
  }

  // The ways to each state of a table, until there are no more.
  Matrix of_table(Expr expr, const Table& table) {
    const auto [known, is_new] = tables_.try_emplace(expr);
    if (!is_new) return known->second;
    Matrix& all = known->second;
    std::vector<Bits> ways(table.size() * states_);
    std::vector<bool> waits(table.size());
    std::vector<int32_t> open;
    const auto meet = [&](int32_t state, size_t row, Bits found) {
      Bits& at = ways[static_cast<size_t>(state) * states_ + row];
      if ((found & ~at) == 0) return;
      at |= found;
      if (!waits[state]) open.push_back(state);
      waits[state] = true;
    };
    for (size_t i = 0; i < states_; ++i) meet(0, i, Bits{1} << i);
    while (!open.empty()) {
      const int32_t state = open.back();
      open.pop_back();
      waits[state] = false;
      for (const Table::Edge& edge : table.edges_of(state)) {
        const Matrix& steps = step(edge.low, edge.high);
        language_.budget().spend(static_cast<int64_t>(states_) / 8 + 1);
        for (size_t i = 0; i < states_; ++i)
          for (Bits left = ways[static_cast<size_t>(state) * states_ + i]; left != 0;
               left &= left - 1)
            meet(edge.to, i, steps[std::countr_zero(left)]);
      }
    }
    for (size_t state = 0; state < table.size(); ++state)
      for (size_t i = 0; table.accepts[state] && i < states_; ++i)
        all[i] |= ways[state * states_ + i];
    return all;
  }

  // The matrix of one byte among some.
  const Matrix& step(uint8_t low, uint8_t high) {
    const auto [known, is_new] = steps_.try_emplace({low, high});
    if (!is_new) return known->second;
    for (size_t i = 0; i < states_; ++i)
      for (unsigned byte = low; byte <= high; ++byte) known->second[i] |= Bits{1} << next_[i][byte];
    return known->second;
  }

  const Language& language_;
  const std::string_view word_;
  const size_t states_;
  std::array<std::array<uint8_t, 256>, kMostWordBytes + 1> next_{};
  std::map<int32_t, Matrix> rules_;  // by number
  std::vector<Expr> met_;            // one of each
  std::map<Expr, Matrix> tables_;
  std::map<std::pair<uint8_t, uint8_t>, Matrix> steps_;
};

}  // namespace

bool may_contain(const Language& language, Language::Expr root, std::string_view word) {
  return WordSearch(language, word).contains(root);
}

}  // namespace invar::grammar
