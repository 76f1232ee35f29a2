// The blocks of a drafter's own keys and values, by request. There is a fixed number: when they are
// all taken, the sequence that was not drafted for longest loses its own and begins anew when its
// turn comes. What is lost costs drafts, never a wrong answer.
#pragma once

#include <unordered_map>
#include <vector>

#include "kv/block_table.h"

namespace invar {

class DraftBlocks {
 public:
  DraftBlocks(int32_t blocks, int32_t block_size) : pool_(blocks, block_size) {}

  // A round of drafting begins: what is grown from now on is not taken away in it.
  void begin_round() { ++round_; }
  // Makes room for so many slots of a request. False when there is none; what it has stays.
  bool grow(int64_t id, int64_t slots);
  // Slots that a request has room for: 0 when it lost them.
  int64_t capacity(int64_t id) const;
  std::span<const int32_t> blocks(int64_t id) const;
  void forget(int64_t id) { tables_.erase(id); }
  void forget_all() { tables_.clear(); }

  // Blocks for the tails of draft paths, until the next call. False when there are not as many.
  bool take_scratch(int32_t count, std::vector<int32_t>& blocks);

  const BlockPool& pool() const { return pool_; }

 private:
  struct Entry {
    BlockTable table;
    int64_t round = 0;  // the last in which it was grown
  };
  bool evict_one();
  bool make_free(int32_t blocks);

  BlockPool pool_;
  std::unordered_map<int64_t, Entry> tables_;
  int64_t round_ = 0;
};

}  // namespace invar
