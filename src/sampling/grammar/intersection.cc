#include "sampling/grammar/intersection.h"

#include <map>
#include <set>

#include "sampling/grammar/automaton.h"

namespace invar::grammar {

namespace {

// Bytes that no set, text or table of the language tells apart have one class.
class Classes {
 public:
  explicit Classes(const Language& language) {
    for (size_t i = 0; i < language.size(); ++i) {
      const Language::Node& node = language.node(static_cast<Language::Expr>(i));
      if (node.kind == Language::Kind::bytes) divide(language.set_of(node));
      if (node.kind == Language::Kind::text)
        for (const char c : language.text_of(node))
          divide(static_cast<uint8_t>(c), static_cast<uint8_t>(c));
      if (node.kind == Language::Kind::table)
        for (const Table::Edge& edge : language.table_of(node).edges) divide(edge.low, edge.high);
    }
    std::map<int, uint8_t> first;
    for (int b = 0; b < 256; ++b)
      like[b] = first.try_emplace(class_[b], static_cast<uint8_t>(b)).first->second;
  }

  std::array<uint8_t, 256> like;

 private:
  void divide(uint8_t low, uint8_t high) {
    ByteSet set{};
    add_to(set, low, high);
    divide(set);
  }
  void divide(const ByteSet& set) {
    if (!done_.insert(set).second) return;
    std::map<std::pair<int, bool>, int> parts;
    for (int b = 0; b < 256; ++b) {
      const std::pair key{class_[b], has(set, static_cast<uint8_t>(b))};
      class_[b] = parts.try_emplace(key, static_cast<int>(parts.size())).first->second;
    }
  }

  std::array<int, 256> class_{};
  std::set<ByteSet> done_;
};

}  // namespace

Table intersection(Language& language, std::span<const Part> parts, Language::Expr characters) {
  std::vector<Language::Expr> all{characters};
  for (const Part& part : parts) all.push_back(part.expr);
  language.finish(language.sequence(all));
  Automaton automaton(language);
  Search::Key start;
  for (const Part& part : parts) start.push_back(automaton.enter(part.expr));
  start.push_back(automaton.enter(characters));
  const auto is_negated = [&](size_t i) { return i < parts.size() && parts[i].negated; };
  // A negated part that can read no more forbids nothing any more.
  const auto is_alive = [&](const Search::Key& key) {
    for (size_t i = 0; i < key.size(); ++i)
      if (key[i] == Automaton::kDead && !is_negated(i)) return false;
    return true;
  };
  if (!is_alive(start)) return {};
  const auto step = [&](const Search::Key& key, uint8_t byte) -> std::optional<Search::Key> {
    Search::Key to(key.size(), Automaton::kDead);
    const int64_t work = automaton.work();
    for (size_t i = 0; i < key.size(); ++i) {
      if (key[i] != Automaton::kDead) to[i] = automaton.step(key[i], byte);
      if (to[i] == Automaton::kDead && !is_negated(i)) return std::nullopt;
    }
    language.budget -= automaton.work() - work;
    return to;
  };
  const auto accepts = [&](const Search::Key& key) {
    for (size_t i = 0; i < parts.size(); ++i)
      if ((key[i] != Automaton::kDead && automaton.accepts(key[i])) == is_negated(i)) return false;
    return true;
  };
  const auto begins = [&](const Search::Key& key) { return automaton.accepts(key.back()); };
  return search_table(start, Classes(language).like, {step, accepts, begins}, language.budget);
}

}  // namespace invar::grammar
