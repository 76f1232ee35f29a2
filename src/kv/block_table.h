// The blocks of one sequence: block i holds slots [i * block_size, (i + 1) * block_size).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/layout.h"
#include "kv/block_pool.h"

namespace invar {

// Holds one reference to each of its blocks and drops them when it is destroyed. Blocks that are
// shared with other tables are full and lie before every slot that this sequence still writes.
class BlockTable {
 public:
  explicit BlockTable(BlockPool& pool) : pool_(&pool) {}
  ~BlockTable() { clear(); }
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;

  std::span<const int32_t> blocks() const { return blocks_; }
  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  // Slots that the blocks have room for.
  int64_t capacity() const { return capacity_; }

  // Makes room in the table, so that it can grow to so many slots without taking memory.
  void reserve(int64_t slots) { blocks_.reserve(pool_->blocks_for(slots)); }
  // Takes blocks until there is room for `slots` slots; takes none and returns false when too few
  // are free.
  bool grow(int64_t slots) { return slots <= capacity_ || take_blocks(slots); }
  // Gives back the blocks past the first `slots` slots.
  void truncate(int64_t slots);
  void clear() { truncate(0); }

  // Appends blocks that others hold, with a reference of its own to each.
  void share(std::span<const int32_t> blocks);
  // Block `index` becomes `block`, which others hold and which has the same contents.
  void replace(int32_t index, int32_t block);
  // Becomes a copy of the first `slots` slots of `source`: full blocks are shared, the last one,
  // when it is partial, is a block of its own that `copies` fills. Returns false and stays empty
  // when a block is needed and none is free. REQUIRES: this table is empty.
  bool fork(const BlockTable& source, int64_t slots, std::vector<SlotCopy>& copies);

 private:
  bool take_blocks(int64_t slots);
  void append(int32_t block);

  BlockPool* pool_;
  int64_t capacity_ = 0;
  std::vector<int32_t> blocks_;
};

}  // namespace invar
