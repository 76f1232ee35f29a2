// The blocks of a drafter's own keys and values, by request, and the cells of its states, where its
// layers have them. There is a fixed number: when they are all taken, the sequence that was not
// drafted for longest loses its own and begins anew when its turn comes. The loss costs drafts,
// never a wrong answer.
#pragma once

#include <unordered_map>
#include <vector>

#include "kv/block_table.h"

namespace invar {

class DraftBlocks {
 public:
  DraftBlocks(int32_t blocks, int32_t block_size, int32_t cells = 0);

  // A round of drafting begins: what is grown from now on is not taken away in it.
  void begin_round() { ++round_; }
  // Makes room for so many slots of a request, and a state. False when there is none; what it has
  // stays.
  bool grow(int64_t id, int64_t slots);
  // Slots that a request has room for: 0 when it lost them.
  int64_t capacity(int64_t id) const;
  std::span<const int32_t> blocks(int64_t id) const;
  int32_t cell(int64_t id) const { return tables_.at(id).cell; }  // -1: there are no states
  void forget(int64_t id);
  void forget_all();

  // Blocks for the tails of draft paths, until the next call. False when there are not as many.
  bool take_scratch(int32_t count, std::vector<int32_t>& blocks);

  const BlockPool& pool() const { return pool_; }

 private:
  struct Entry {
    BlockTable table;
    int64_t round = 0;  // the last in which it was grown
    int32_t cell = -1;
  };
  using Tables = std::unordered_map<int64_t, Entry>;
  void erase(Tables::iterator entry);
  bool take_cell(Entry& entry);
  bool evict_one();
  bool make_free(int32_t blocks);

  BlockPool pool_;
  const int32_t cells_;
  std::vector<int32_t> free_cells_;
  Tables tables_;
  int64_t round_ = 0;
};

}  // namespace invar
