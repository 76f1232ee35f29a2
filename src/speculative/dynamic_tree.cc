#include "speculative/dynamic_tree.h"

#include <algorithm>
#include <numeric>

namespace invar {

namespace {

// Indices from `begin` on, the best first. A child never comes before its parent.
std::vector<int32_t> ranked(std::span<const ScoredNode> nodes, int32_t begin) {
  std::vector<int32_t> order(nodes.size() - static_cast<size_t>(begin));
  std::iota(order.begin(), order.end(), begin);
  std::ranges::stable_sort(order, std::greater(),
                           [&](int32_t node) { return nodes[static_cast<size_t>(node)].score; });
  return order;
}

}  // namespace

std::vector<int32_t> best_of(std::span<const ScoredNode> nodes, int32_t begin, int32_t count) {
  std::vector<int32_t> best = ranked(nodes, begin);
  if (std::ssize(best) > count) best.resize(static_cast<size_t>(std::max(count, 0)));
  std::ranges::sort(best);
  return best;
}

DraftTree tree_of_best(std::span<const ScoredNode> nodes, int32_t count) {
  std::vector<int32_t> order = ranked(nodes, 0);
  if (std::ssize(order) > count) order.resize(static_cast<size_t>(std::max(count, 0)));
  DraftTree tree;
  std::vector<int32_t> index(nodes.size(), -1);  // in the tree
  const auto add = [&](int32_t node) {
    const auto [token, parent, _] = nodes[static_cast<size_t>(node)];
    index[static_cast<size_t>(node)] = static_cast<int32_t>(tree.size());
    tree.push_back({token, parent < 0 ? -1 : index[static_cast<size_t>(parent)]});
  };
  int32_t last = -1;  // of the surest path
  for (const int32_t node : order)
    if (nodes[static_cast<size_t>(node)].parent == last) add(last = node);
  for (const int32_t node : order)
    if (index[static_cast<size_t>(node)] < 0) add(node);
  return tree;
}

}  // namespace invar
