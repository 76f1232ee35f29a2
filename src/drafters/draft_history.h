// Blocks of keys and values of a drafter's layer whose rows depend on the token that follows: row i
// of a sequence on its tokens 0 .. i + 1. Full blocks are kept under those tokens, so that a
// sequence whose beginning the target had in its prefix cache finds the drafter's part of it. Where
// nothing is found nothing is computed again: the sequence is not drafted for.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>

#include "kv/block_table.h"

namespace invar {

class DraftHistory {
 public:
  static constexpr int32_t kBlock = 32;  // divides the target's block sizes

  explicit DraftHistory(int32_t blocks) : pool_(blocks, kBlock) {}

  class Rows;
  // Makes room in a table for so many slots; kept blocks of sequences that are gone give way. False
  // when there is none.
  bool grow(BlockTable& table, int64_t slots);
  // `copy`, which is empty, becomes a copy of the first `slots` slots of `table`. False when there
  // is no room.
  bool fork(const BlockTable& table, int64_t slots, BlockTable& copy,
            std::vector<SlotCopy>& copies);
  BlockPool& pool() { return pool_; }

 private:
  struct Kept {
    uint64_t key;
    int32_t block;
  };

  bool make_free(int32_t blocks);
  void keep(uint64_t key, int32_t block);
  int32_t find(uint64_t key);  // or -1

  BlockPool pool_;
  std::list<Kept> kept_;  // the latest first
  std::unordered_map<uint64_t, std::list<Kept>::iterator> by_key_;
};

// The rows of one sequence.
class DraftHistory::Rows {
 public:
  explicit Rows(DraftHistory& history) : history_(&history), table_(history.pool_) {}

  int32_t size() const { return size_; }
  const BlockTable& table() const { return table_; }
  void clear();
  // Goes on from the blocks that are kept for the first `rows` rows of these tokens. False when
  // they are not all there.
  bool restore(std::span<const int32_t> tokens, int32_t rows);
  // Makes room for so many rows behind those that there are.
  bool reserve(int32_t rows) { return history_->grow(table_, size_ + rows); }
  // The next `rows` rows of these tokens are computed by the next step.
  void add(std::span<const int32_t> tokens, int32_t rows);

 private:
  static uint64_t next_key(uint64_t key, std::span<const int32_t> tokens, int32_t block);

  DraftHistory* history_;
  BlockTable table_;
  uint64_t key_ = 0;  // of the full blocks
  int32_t size_ = 0;
};

}  // namespace invar
