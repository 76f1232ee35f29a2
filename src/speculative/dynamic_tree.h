// Draft trees whose shape follows from how sure the drafter is: Li et al., "EAGLE-2: Faster
// Inference of Language Models with Dynamic Draft Trees" (2024). Level by level the surest nodes
// are expanded; of all that were scored the best make the tree.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "speculative/draft_tree.h"

namespace invar {

// A node that was scored. Parents come before their children and score at least as much.
struct ScoredNode {
  int32_t token = 0;
  int32_t parent = -1;  // index of a node before this one, or -1: the root
  float score = 0;      // sum of the logarithms of the shares on its path
};

// The `count` best of nodes[begin ..], ties to the lower index, ascending by index.
std::vector<int32_t> best_of(std::span<const ScoredNode> nodes, int32_t begin, int32_t count);

// The tree of the `count` best nodes: first the surest path, then by score.
DraftTree tree_of_best(std::span<const ScoredNode> nodes, int32_t count);

}  // namespace invar
