// A tree of drafts below the last known token of a sequence (the root), and its way through a step:
// rows of the batch before the forward, a walk along the target's own samples after it, and the
// copies that keep the accepted keys and values. Numerics 4.1 and 6: the answer is that of plain
// decoding, whatever the tree holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/placement.h"

namespace invar {

struct DraftNode {
  int32_t token = 0;
  int32_t parent = -1;  // index of a node before this one, or -1: the root

  bool operator==(const DraftNode&) const = default;
};

// Parents come before their children; no two children of a node hold the same token. The likeliest
// path comes first: the *trunk* is the longest beginning in which every node is the child of the
// one before it. Its rows write to the sequence's own blocks and need no scratch.
using DraftTree = std::vector<DraftNode>;

// A tree may have so many nodes (numerics place no limit; blocks of rows do).
inline constexpr int32_t kMaxDraftNodes = 64;

int32_t trunk_size(const DraftTree& tree);
// Levels below the root; 0 for an empty tree.
int32_t depth_of(const DraftTree& tree);
// Empty when the tree is as described above, with tokens below `vocab`; else a sentence.
std::string check_tree(const DraftTree& tree, int32_t vocab);
// Takes away nodes until there are at most `nodes` of them and none is deeper than `depth`: the
// last ones first, so that the trunk stays longest.
void prune(DraftTree& tree, int32_t nodes, int32_t depth);
// Takes away the nodes that are not of the trunk.
void keep_trunk(DraftTree& tree);

// Appends the tree's rows to those of a batch, whose last row is the root. The trunk's are rows of
// the sequence itself, but where layers have states: those move with such rows.
void append_rows(const DraftTree& tree, std::vector<BatchRow>& rows, bool has_states = false);

// The node below `node` (-1: the root) that holds `token`, or -1.
int32_t child_with(const DraftTree& tree, int32_t node, int32_t token);

}  // namespace invar
