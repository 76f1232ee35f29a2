#include "sampling/grammar/intersection.h"

#include "sampling/grammar/automaton.h"

namespace invar::grammar {

Table intersection(Language& language, std::span<const Part> parts, Language::Expr characters) {
  std::vector<Language::Expr> all{characters};
  for (const Part& part : parts) all.push_back(part.expr);
  language.finish(language.sequence(all));
  Automaton automaton(language);
  Search::Key start;
  int64_t cost = 0;
  for (const Part& part : parts) start.push_back(automaton.enter(part.expr, cost));
  start.push_back(automaton.enter(characters, cost));
  language.budget().spend(cost);
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
    for (size_t i = 0; i < key.size(); ++i) {
      if (key[i] != Automaton::kDead) {
        const int64_t before = automaton.work();
        to[i] = automaton.edge(key[i], byte).to;
        language.budget().spend(1 + automaton.work() - before);
      }
      if (to[i] == Automaton::kDead && !is_negated(i)) return std::nullopt;
    }
    return to;
  };
  const auto accepts = [&](const Search::Key& key) {
    for (size_t i = 0; i < parts.size(); ++i)
      if ((key[i] != Automaton::kDead && automaton.accepts(key[i])) == is_negated(i)) return false;
    return true;
  };
  const auto begins = [&](const Search::Key& key) { return automaton.accepts(key.back()); };
  const auto like = [&](uint8_t byte) { return automaton.like(byte); };
  return search_table(start, {step, accepts, begins, like}, language.budget());
}

}  // namespace invar::grammar
