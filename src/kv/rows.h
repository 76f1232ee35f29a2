// The rows and sequences of a batch as plain data: the part of the waist (model/batch.h) that
// placement reads.
#pragma once

#include <cstdint>
#include <vector>

namespace invar {

// One position of one sequence, to be computed.
struct BatchRow {
  int32_t token = 0;     // or ~i: the i-th that the step before samples (ForwardIo::sampled)
  int32_t position = 0;  // absolute: the slot of its key and value, behind which it sees nothing
  int32_t sequence = 0;  // index into Batch::sequences
  // Row of this batch that stands one position before this one in a draft tree, or -1: the slot
  // before it is in the sequence's blocks, or the row before it in this batch (same sequence,
  // position one less).
  int32_t parent = -1;
  // The row of Batch::features that it begins with; -1: the embedding of its token.
  int32_t features = -1;
  int32_t rotation_offset = 0;

  bool operator==(const BatchRow&) const = default;
};
constexpr bool is_draft(const BatchRow& row) {
  return row.parent >= 0;
}
// The position that its query and key are rotated by.
constexpr int32_t rotation_of(const BatchRow& row) {
  return row.position + row.rotation_offset;
}

// Where a sequence's keys and values live: blocks[i] holds slots [i * block_size, (i + 1) *
// block_size).
struct BatchSequence {
  std::vector<int32_t> blocks;
  int32_t cell = -1;     // of what it leaves once, not at every position (kv/cell_placement.h)
  int32_t adapter = -1;  // the slot of its adapter (Batch::adapters); -1: it has none
  bool operator==(const BatchSequence&) const = default;
};

}  // namespace invar
