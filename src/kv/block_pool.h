// The holders of each block of the KV cache: reference counts and a free list. Pure bookkeeping;
// the memory is in sequence_store.h. A block is free or referenced, never both. A block that only a
// cache holds is as good as free: the pool takes it back when it has no other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace invar {

// A cache that keeps blocks that nobody uses now.
class BlockKeeper {
 public:
  virtual ~BlockKeeper() = default;
  // Gives up one kept block that nobody else holds (BlockPool::drop_kept). There is one.
  virtual void give_up_block() = 0;
};

class BlockPool {
 public:
  // `block_size` is 32, 64 or 128: whole leaves of values, never more than a split of attention
  // (numerics 1.1, 4). Throws UsageError for any other size and for a pool without blocks.
  BlockPool(int32_t num_blocks, int32_t block_size);

  int32_t num_blocks() const { return static_cast<int32_t>(references_.size()); }
  int32_t block_size() const { return block_size_; }
  // Blocks that can be allocated, idle kept ones among them.
  int32_t free_blocks() const { return static_cast<int32_t>(free_.size()) + idle_kept_; }
  // Blocks that an admission leaves free, so that the admitted can grow: 1 %.
  int32_t watermark() const { return num_blocks() / 100; }
  // Blocks that hold `slots` slots.
  int32_t blocks_for(int64_t slots) const {
    return static_cast<int32_t>((slots + block_size_ - 1) >> block_shift_);
  }

  // A free block, now with one reference. Which one depends on the calls so far alone. REQUIRES:
  // free_blocks() > 0.
  int32_t allocate();
  void add_reference(int32_t block);
  // Drops one reference; the last one frees the block.
  void release(int32_t block);
  int32_t references(int32_t block) const { return references_[block]; }

  // At most one keeper, or null. It keeps a block by a reference of its own.
  void set_keeper(BlockKeeper* keeper) { keeper_ = keeper; }
  void keep(int32_t block);
  void drop_kept(int32_t block);
  // Kept and held by nobody else.
  bool is_idle_kept(int32_t block) const { return is_kept_[block] && references_[block] == 1; }

  // Empty when every block is either free, once, or referenced; else what is wrong. For tests and
  // debugging: takes time proportional to the pool.
  std::string check_integrity() const;

 private:
  int32_t block_size_, block_shift_;
  std::vector<int32_t> references_;  // per block
  std::vector<int32_t> free_;        // a stack
  std::vector<bool> is_kept_;
  int32_t idle_kept_ = 0;
  BlockKeeper* keeper_ = nullptr;
};

}  // namespace invar
