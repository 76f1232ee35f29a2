#include "sampling/grammar/table.h"

#include <algorithm>
#include <array>
#include <deque>
#include <unordered_map>

#include "base/error.h"

namespace invar::grammar {

namespace {

using Edges = std::vector<std::vector<Table::Edge>>;

// Characters of the shortest way from every state to an end; -1 where there is none.
std::vector<int32_t> shortest_ways(const Edges& edges, const std::vector<bool>& accepts) {
  struct Back {
    int32_t from;
    bool begins;
  };
  std::vector<std::vector<Back>> back(edges.size());
  for (size_t s = 0; s < edges.size(); ++s)
    for (const Table::Edge& edge : edges[s])
      if (back[edge.to].empty() || back[edge.to].back().from != static_cast<int32_t>(s) ||
          back[edge.to].back().begins != edge.begins)
        back[edge.to].push_back({static_cast<int32_t>(s), edge.begins});
  std::vector<int32_t> ways(edges.size(), -1);
  std::deque<std::pair<int32_t, int32_t>> open;
  for (size_t s = 0; s < edges.size(); ++s)
    if (accepts[s]) open.push_back({static_cast<int32_t>(s), 0});
  while (!open.empty()) {
    const auto [state, way] = open.front();
    open.pop_front();
    if (ways[state] >= 0) continue;
    ways[state] = way;
    for (const auto& [from, begins] : back[state]) {
      if (ways[from] >= 0) continue;
      if (begins)
        open.push_back({from, way + 1});
      else
        open.push_front({from, way});
    }
  }
  return ways;
}

// Edges in the order of their bytes. Drops what leads nowhere.
Table finished_table(const Edges& edges, const std::vector<bool>& accepts) {
  const std::vector<int32_t> ways = shortest_ways(edges, accepts);
  Table table;
  if (edges.empty() || ways[0] < 0) return table;
  std::vector<int32_t> place(edges.size(), -1);
  int32_t kept = 0;
  for (size_t s = 0; s < edges.size(); ++s)
    if (ways[s] >= 0) place[s] = kept++;
  for (size_t s = 0; s < edges.size(); ++s) {
    if (ways[s] < 0) continue;
    table.first.push_back(static_cast<int32_t>(table.edges.size()));
    table.accepts.push_back(accepts[s]);
    table.shortest.push_back(ways[s]);
    table.longest_way = std::max(table.longest_way, ways[s]);
    for (const Table::Edge& edge : edges[s]) {
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
  return table;
}

struct Hash {
  size_t operator()(const Search::Key& key) const {
    size_t hash = key.size();
    for (const int32_t value : key) {
      hash = (hash ^ static_cast<uint32_t>(value)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

}  // namespace

Table search_table(const Search::Key& start, std::span<const uint8_t, 256> like,
                   const Search& search, int64_t& budget) {
  std::unordered_map<Search::Key, int32_t, Hash> places{{start, 0}};
  std::vector<Search::Key> keys{start};
  Edges edges;
  std::vector<bool> ends;
  for (size_t i = 0; i < keys.size(); ++i) {
    const Search::Key key = keys[i];
    const bool begins = search.begins(key);
    std::array<int32_t, 256> to;
    edges.emplace_back();
    ends.push_back(search.accepts(key));
    for (int byte = 0; byte < 256; ++byte) {
      if (like[byte] < byte) {
        to[byte] = to[like[byte]];
      } else if (auto next = search.step(key, static_cast<uint8_t>(byte))) {
        budget -= Table::kStepCost;
        const auto place = static_cast<int32_t>(keys.size());
        const auto [at, is_new] = places.try_emplace(*next, place);
        if (is_new) keys.push_back(std::move(*next));
        to[byte] = at->second;
      } else {
        to[byte] = -1;
      }
      const auto b = static_cast<uint8_t>(byte);
      if (to[byte] < 0) continue;
      if (!edges.back().empty() && edges.back().back().to == to[byte] &&
          edges.back().back().high + 1 == byte)
        edges.back().back().high = b;
      else
        edges.back().push_back({b, b, begins, to[byte]});
    }
    budget -= Table::kStateCost;
    if (budget < 0)
      fail_usage(
          "the grammar is too large: its patterns with their lengths, its multiples within their "
          "bounds and the names it excludes need too many states");
  }
  return finished_table(edges, ends);
}

Table table_of_texts(std::span<const std::string> texts) {
  std::vector<std::string_view> sorted(texts.begin(), texts.end());
  std::sort(sorted.begin(), sorted.end());
  Edges edges(1);
  std::vector<bool> accepts(1, false);
  std::vector<int32_t> path{0};  // the states of the text before
  std::string_view before;
  for (const std::string_view text : sorted) {
    const auto same = std::mismatch(text.begin(), text.end(), before.begin(), before.end());
    const size_t shared = static_cast<size_t>(same.first - text.begin());
    path.resize(shared + 1);
    for (size_t i = shared; i < text.size(); ++i) {
      const int32_t to = static_cast<int32_t>(edges.size());
      const auto byte = static_cast<uint8_t>(text[i]);
      edges[path.back()].push_back({byte, byte, false, to});
      edges.emplace_back();
      accepts.push_back(false);
      path.push_back(to);
    }
    accepts[path.back()] = true;
    before = text;
  }
  return finished_table(edges, accepts);
}

}  // namespace invar::grammar
