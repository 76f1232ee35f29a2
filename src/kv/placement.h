// Where the rows of a batch write their keys and values and what they read: block tables for
// ordinary rows, gathered tails for draft trees (numerics 4).
//
// The rows of a sequence are its *trunk* (parent -1), which writes to the sequence's own blocks,
// and draft rows, each with a parent. Every root-to-leaf path of drafts has a table of its own: the
// sequence's blocks up to the one that contains the path's first draft position, `base`, and from
// there on private scratch blocks, the *tail*. The slots before `base` in the first of them are
// copied from the sequence's block; the path's rows write their own slot in it. A row on several
// paths writes into the tail of each and reads any one of them: what stands after its position is
// hidden by causality.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/layout.h"
#include "kv/rows.h"

namespace invar {

// Scratch blocks that the draft rows among `rows` need; 0 without draft rows.
int32_t scratch_blocks_needed(std::span<const BatchRow> rows, int32_t block_size);

// Computes the tables of one batch after another; allocates only when a batch is larger than all
// before it.
class Placement {
 public:
  // `block_size` is a power of two.
  // REQUIRES: rows of one sequence stand together; a parent comes before its children, in the same
  // sequence and one position before them; trunk positions ascend by one; a sequence's blocks cover
  // its trunk, are not in `scratch_blocks`, and `scratch_blocks` are as many as are needed.
  void build(std::span<const BatchRow> rows, std::span<const BatchSequence> sequences,
             std::span<const int32_t> scratch_blocks, int32_t block_size);

  // All of these are valid until the next build.

  // To be done in every layer before anything is written. From sequences' blocks to scratch blocks.
  std::span<const SlotCopy> copies() const { return copies_; }
  // Slots that row t writes: elements write_begin[t] .. write_begin[t + 1] of the other two.
  std::span<const int32_t> write_begin() const { return write_begin_; }
  std::span<const int32_t> write_block() const { return write_block_; }
  std::span<const int32_t> write_slot() const { return write_slot_; }
  // Row t reads the block table that begins at table_blocks[table_begin[table_of[t]]] and covers
  // its position. Rows with equal table_of stand together.
  std::span<const int32_t> table_of() const { return table_of_; }
  std::span<const int32_t> table_begin() const { return table_begin_; }
  std::span<const int32_t> table_blocks() const { return table_blocks_; }

  // The block table that row t reads, from its first block on.
  const int32_t* table(int32_t row) const { return &table_blocks_[row_table_[row]]; }

  // Accepts the draft path that ends in row `last`: appends the copies that bring its keys and
  // values from scratch to the sequence's own blocks, which cover the position of `last`. Accepting
  // a trunk row needs none. To be done before the scratch blocks are used again.
  void accept(std::span<const BatchRow> rows, int32_t last, std::span<const int32_t> own_blocks,
              std::vector<SlotCopy>& copies) const;

 private:
  // The drafts above and with a leaf, and the scratch blocks of its tail.
  struct Path {
    int32_t leaf = 0;
    std::span<const int32_t> tail;
  };

  void link_rows(std::span<const BatchRow> rows);
  void find_paths(std::span<const BatchRow> rows, std::span<const int32_t> scratch_blocks);
  void count_writes(std::span<const BatchRow> rows);
  void place_trunks(std::span<const BatchRow> rows, std::span<const BatchSequence> sequences);
  void place_path(std::span<const BatchRow> rows, const Path& path, std::span<const int32_t> own);
  void assign_tables(std::span<const BatchRow> rows);

  int shift_ = 0;  // block_size is 1 << shift_
  int32_t slot_mask_ = 0;
  std::vector<SlotCopy> copies_;
  std::vector<int32_t> write_begin_, write_block_, write_slot_;
  std::vector<int32_t> table_of_, table_begin_, table_blocks_;

  // Per row: the row before it on its path in this batch, or -1; of a draft, the position of the
  // first draft on its path; whether drafts follow it; the next free element of its writes; where
  // its table begins in table_blocks_.
  std::vector<int32_t> before_, base_;
  std::vector<char> has_child_;
  std::vector<int32_t> next_write_, row_table_;
  std::vector<Path> paths_;         // of the drafts, by leaf; valid within build
  std::vector<int32_t> own_table_;  // per sequence: where its table begins in table_blocks_
};

}  // namespace invar
