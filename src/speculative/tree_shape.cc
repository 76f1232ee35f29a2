#include "speculative/tree_shape.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace invar {

namespace {

using Path = std::vector<int32_t>;

bool is_argmax(const Path& path) {
  return std::ranges::all_of(path, [](int32_t rank) { return rank == 0; });
}

// The order of TreeShape.
bool comes_before(const Path& a, const Path& b) {
  const bool a_first = is_argmax(a), b_first = is_argmax(b);
  if (a_first != b_first) return a_first;
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

}  // namespace

TreeShape chain_shape(int32_t length) {
  TreeShape shape;
  for (int32_t node = 0; node < length; ++node) shape.push_back({.parent = node - 1});
  return shape;
}

TreeShape shape_of_paths(std::vector<Path> paths) {
  if (paths.empty() || std::ssize(paths) > kMaxDraftNodes)
    fail_usage("expected a token tree of 1 to {} paths, found {}", kMaxDraftNodes, paths.size());
  std::ranges::sort(paths, comes_before);
  TreeShape shape;
  std::map<Path, int32_t> node_of;
  for (const Path& path : paths) {
    if (path.empty()) fail_usage("expected paths of at least one rank in a token tree, found ()");
    if (const auto bad = std::ranges::find_if(path, [](int32_t r) { return r < 0; });
        bad != path.end())
      fail_usage("expected ranks of 0 or more in a token tree, found ({})", fmt::join(path, ", "));
    const auto above = node_of.find(Path(path.begin(), path.end() - 1));
    if (path.size() > 1 && above == node_of.end())
      fail_usage("expected the path above ({}) in the token tree, found none",
                 fmt::join(path, ", "));
    const int32_t node = static_cast<int32_t>(shape.size());
    if (!node_of.emplace(path, node).second)
      fail_usage("expected every path of a token tree once, found ({}) twice",
                 fmt::join(path, ", "));
    shape.push_back({.parent = path.size() > 1 ? above->second : -1, .rank = path.back()});
  }
  return shape;
}

std::vector<int32_t> levels_of(const TreeShape& shape) {
  std::vector<int32_t> levels;
  for (const TreeShapeNode& node : shape)
    levels.push_back(node.parent < 0 ? 1 : levels[node.parent] + 1);
  return levels;
}

std::vector<int32_t> ranks_below(const TreeShape& shape) {
  std::vector<int32_t> ranks(shape.size() + 1, 0);
  for (const TreeShapeNode& node : shape)
    ranks[node.parent + 1] = std::max(ranks[node.parent + 1], node.rank + 1);
  return ranks;
}

}  // namespace invar
