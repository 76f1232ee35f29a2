#include "sampling/grammar/table.h"

#include <algorithm>
#include <array>
#include <deque>

#include "sampling/grammar/list_table.h"

namespace invar::grammar {

namespace {

// The states that lead to each state: those of state s from first[s] on.
struct Backward {
  struct Step {
    int32_t from;
    bool begins;
  };
  explicit Backward(const Table& table) : first(table.size() + 1), steps(table.edges.size()) {
    for (const Table::Edge& edge : table.edges) ++first[static_cast<size_t>(edge.to) + 1];
    for (size_t s = 1; s < first.size(); ++s) first[s] += first[s - 1];
    std::vector<int32_t> next(first.begin(), first.end() - 1);
    for (size_t s = 0; s < table.size(); ++s)
      for (const Table::Edge& edge : table.edges_of(static_cast<int32_t>(s)))
        steps[static_cast<size_t>(next[edge.to]++)] = {static_cast<int32_t>(s), edge.begins};
  }
  std::vector<int32_t> first;
  std::vector<Step> steps;
};

// Characters of the shortest way from every state to an end; -1 where there is none.
std::vector<int32_t> shortest_ways(const Table& table) {
  const Backward backward(table);
  std::vector<int32_t> ways(table.size(), -1);
  std::deque<std::pair<int32_t, int32_t>> open;
  for (size_t s = 0; s < table.size(); ++s)
    if (table.accepts[s]) open.push_back({static_cast<int32_t>(s), 0});
  while (!open.empty()) {
    const auto [state, way] = open.front();
    open.pop_front();
    if (ways[state] >= 0) continue;
    ways[state] = way;
    for (int32_t i = backward.first[state]; i < backward.first[state + 1]; ++i) {
      const Backward::Step& step = backward.steps[i];
      if (ways[step.from] >= 0) continue;
      if (step.begins)
        open.push_back({step.from, way + 1});
      else
        open.push_front({step.from, way});
    }
  }
  return ways;
}

// Drops what leads nowhere. `all` has edges and ends, those in the order of their bytes.
Table finished_table(const Table& all) {
  const std::vector<int32_t> ways = shortest_ways(all);
  Table table;
  if (all.size() == 0 || ways[0] < 0) return table;
  std::vector<int32_t> place(all.size(), -1);
  int32_t kept = 0;
  for (size_t s = 0; s < all.size(); ++s)
    if (ways[s] >= 0) place[s] = kept++;
  for (size_t s = 0; s < all.size(); ++s) {
    if (ways[s] < 0) continue;
    table.first.push_back(static_cast<int32_t>(table.edges.size()));
    table.accepts.push_back(all.accepts[s]);
    table.shortest.push_back(ways[s]);
    table.longest_way = std::max(table.longest_way, ways[s]);
    for (const Table::Edge& edge : all.edges_of(static_cast<int32_t>(s))) {
      if (ways[edge.to] < 0) continue;
      const int32_t to = place[edge.to];
      const bool goes_on = std::ssize(table.edges) > table.first.back() &&
                           table.edges.back().high + 1 == edge.low && table.edges.back().to == to &&
                           table.edges.back().begins == edge.begins;
      if (goes_on)
        table.edges.back().high = edge.high;
      else
        table.edges.push_back({edge.low, edge.high, edge.begins, to});
    }
  }
  table.first.push_back(static_cast<int32_t>(table.edges.size()));
  table.edges.shrink_to_fit();
  return table;
}

class Searcher {
 public:
  Searcher(const Search& search, Budget& budget) : search_(search), budget_(budget) {}

  Table run(const Search::Key& start) {
    of_key_ = std::ssize(start) / 8;
    keys_.add(start);
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto kept = keys_[static_cast<int32_t>(i)];
      add_state({kept.begin(), kept.end()});
    }
    all_.first.push_back(static_cast<int32_t>(all_.edges.size()));
    return finished_table(all_);
  }

 private:
  void add_state(const Search::Key& key) {
    budget_.spend(Table::kStateCost + of_key_);
    all_.first.push_back(static_cast<int32_t>(all_.edges.size()));
    all_.accepts.push_back(search_.accepts(key));
    const bool begins = search_.begins(key);
    std::array<int32_t, 256> to;
    for (int byte = 0; byte < 256; ++byte) {
      const auto b = static_cast<uint8_t>(byte);
      const uint8_t like = search_.like(b);
      to[b] = like < b ? to[like] : step(key, b);
      if (to[b] < 0) continue;
      const bool goes_on = std::ssize(all_.edges) > all_.first.back() &&
                           all_.edges.back().to == to[b] && all_.edges.back().high + 1 == byte;
      if (goes_on)
        all_.edges.back().high = b;
      else
        all_.edges.push_back({b, b, begins, to[b]});
    }
  }

  int32_t step(const Search::Key& key, uint8_t byte) {
    const auto next = search_.step(key, byte);
    budget_.spend(of_key_ + (next ? Table::kStepCost : 0));
    if (!next) return -1;
    return keys_.add(*next).first;
  }

  const Search& search_;
  Budget& budget_;
  int64_t of_key_ = 0;  // what looking at one costs
  ListTable keys_;
  Table all_;  // edges and ends
};

}  // namespace

Table search_table(const Search::Key& start, const Search& search, Budget& budget) {
  return Searcher(search, budget).run(start);
}

Table table_of_texts(std::span<const std::string> texts) {
  std::vector<std::string_view> sorted(texts.begin(), texts.end());
  std::sort(sorted.begin(), sorted.end());
  struct Step {
    int32_t from, to;
    uint8_t byte;
  };
  std::vector<Step> steps;
  Table all{.accepts = {false}};
  std::vector<int32_t> path{0};  // the states of the text before
  std::string_view before;
  for (const std::string_view text : sorted) {
    const auto same = std::mismatch(text.begin(), text.end(), before.begin(), before.end());
    const size_t shared = static_cast<size_t>(same.first - text.begin());
    path.resize(shared + 1);
    for (size_t i = shared; i < text.size(); ++i) {
      const auto to = static_cast<int32_t>(all.accepts.size());
      steps.push_back({path.back(), to, static_cast<uint8_t>(text[i])});
      all.accepts.push_back(false);
      path.push_back(to);
    }
    all.accepts[path.back()] = true;
    before = text;
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.from < b.from; });
  size_t at = 0;
  for (size_t s = 0; s <= all.size(); ++s) {
    all.first.push_back(static_cast<int32_t>(at));
    for (; at < steps.size() && steps[at].from == static_cast<int32_t>(s); ++at)
      all.edges.push_back({steps[at].byte, steps[at].byte, false, steps[at].to});
  }
  return finished_table(all);
}

}  // namespace invar::grammar
