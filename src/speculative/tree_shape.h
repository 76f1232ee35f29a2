// The shape of a draft tree before its tokens are known: which of a node's likeliest tokens stand
// below it. Medusa and vLLM write it as a list of paths of ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "speculative/draft_tree.h"

namespace invar {

struct TreeShapeNode {
  int32_t parent = -1;  // index of a node before this one, or -1: the root
  int32_t rank = 0;     // 0: the likeliest token there

  bool operator==(const TreeShapeNode&) const = default;
};

// Parents come before their children. First the path of the likeliest tokens, so that it is the
// trunk (draft_tree.h), then by depth and by path. So the first n nodes are a shape, too.
using TreeShape = std::vector<TreeShapeNode>;

// One token below the other.
TreeShape chain_shape(int32_t length);
// The nodes that the paths lead to: {0, 1} is the second likeliest token below the likeliest.
// Throws UsageError, naming the path, unless every beginning of a path is a path, none comes twice,
// and there are from 1 to kMaxDraftNodes of them.
TreeShape shape_of_paths(std::vector<std::vector<int32_t>> paths);

// Per node: the level that it stands on, 1 below the root.
std::vector<int32_t> levels_of(const TreeShape& shape);
// How many tokens a node is asked for: one more than the largest rank below it; 0 without children.
// Element 0 is the root, element 1 + i node i.
std::vector<int32_t> ranks_below(const TreeShape& shape);

}  // namespace invar
