#include "speculative/draft_tree.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace invar {

namespace {

int32_t depth_of_node(const DraftTree& tree, int32_t node) {
  int32_t depth = 0;
  for (; node >= 0; node = tree[node].parent) ++depth;
  return depth;
}

}  // namespace

int32_t trunk_size(const DraftTree& tree) {
  int32_t size = 0;
  while (size < std::ssize(tree) && tree[size].parent == size - 1) ++size;
  return size;
}

int32_t depth_of(const DraftTree& tree) {
  const int32_t trunk = trunk_size(tree);
  int32_t depth = trunk;
  for (int32_t node = trunk; node < std::ssize(tree); ++node)
    depth = std::max(depth, depth_of_node(tree, node));
  return depth;
}

std::string check_tree(const DraftTree& tree, int32_t vocab) {
  for (int32_t node = 0; node < std::ssize(tree); ++node) {
    const auto [token, parent] = tree[node];
    if (parent < -1 || parent >= node)
      return fmt::format("expected a parent before draft node {}, found {}", node, parent);
    if (token < 0 || token >= vocab)
      return fmt::format("expected a token from 0 to {} in draft node {}, found {}", vocab - 1,
                         node, token);
    if (const int32_t twin = child_with(tree, parent, token); twin != node)
      return fmt::format(
          "expected different tokens below a node, found {} in draft nodes {} and {}", token, twin,
          node);
  }
  return {};
}

void prune(DraftTree& tree, int32_t nodes, int32_t depth) {
  if (std::ssize(tree) > nodes) tree.resize(std::max(nodes, 0));
  if (depth_of(tree) <= depth) return;
  std::vector<int32_t> moved(tree.size(), -1);
  int32_t kept = 0;
  for (int32_t node = 0; node < std::ssize(tree); ++node) {
    const int32_t parent = tree[node].parent;
    const int32_t new_parent = parent < 0 ? -1 : moved[parent];
    if ((parent >= 0 && new_parent < 0) ||
        (new_parent < 0 ? 1 : depth_of_node(tree, new_parent) + 1) > depth)
      continue;
    tree[kept] = {tree[node].token, new_parent};
    moved[node] = kept++;
  }
  tree.resize(kept);
}

void keep_trunk(DraftTree& tree) {
  tree.resize(trunk_size(tree));
}

void append_rows(const DraftTree& tree, std::vector<BatchRow>& rows, bool has_states) {
  const int32_t root = static_cast<int32_t>(rows.size()) - 1;
  const int32_t trunk = has_states ? 0 : trunk_size(tree);
  CHECK(root >= 0, "a draft tree without a root");
  const int32_t sequence = rows[root].sequence;
  for (int32_t node = 0; node < std::ssize(tree); ++node) {
    const int32_t above = root + 1 + tree[node].parent;
    rows.push_back({.token = tree[node].token,
                    .position = rows[above].position + 1,
                    .sequence = sequence,
                    .parent = node < trunk ? -1 : above});
  }
}

int32_t child_with(const DraftTree& tree, int32_t node, int32_t token) {
  for (int32_t child = node + 1; child < std::ssize(tree); ++child)
    if (tree[child].parent == node && tree[child].token == token) return child;
  return -1;
}

}  // namespace invar
