#include "kv/block_pool.h"

#include <bit>

#include "base/check.h"
#include "base/error.h"

namespace invar {

BlockPool::BlockPool(int32_t num_blocks, int32_t block_size)
    : block_size_(block_size), block_shift_(std::countr_zero(static_cast<uint32_t>(block_size))) {
  if (block_size != 32 && block_size != 64 && block_size != 128)
    fail_usage("a block holds 32, 64 or 128 slots, not {}", block_size);
  if (num_blocks < 1) fail_usage("the KV cache needs at least one block, not {}", num_blocks);
  references_.resize(num_blocks, 0);
  is_kept_.resize(num_blocks, false);
  free_.reserve(num_blocks);
  for (int32_t block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

int32_t BlockPool::allocate() {
  CHECK(free_blocks() > 0, "no free block");
  if (free_.empty()) keeper_->give_up_block();
  CHECK(!free_.empty(), "a keeper that gave nothing up");
  const int32_t block = free_.back();
  free_.pop_back();
  references_[block] = 1;
  return block;
}

void BlockPool::add_reference(int32_t block) {
  CHECK(references_[block] > 0, "a reference to a free block");
  idle_kept_ -= is_idle_kept(block);
  ++references_[block];
}

void BlockPool::release(int32_t block) {
  CHECK(references_[block] > 0, "release of a free block");
  if (--references_[block] == 0) free_.push_back(block);
  idle_kept_ += is_idle_kept(block);
}

void BlockPool::keep(int32_t block) {
  CHECK(!is_kept_[block], "a block is kept once");
  add_reference(block);
  is_kept_[block] = true;
}

void BlockPool::drop_kept(int32_t block) {
  CHECK(is_kept_[block], "a block that is not kept");
  idle_kept_ -= is_idle_kept(block);
  is_kept_[block] = false;
  release(block);
}

std::string BlockPool::check_integrity() const {
  std::vector<bool> is_free(references_.size(), false);
  for (const int32_t block : free_) {
    if (block < 0 || block >= num_blocks()) return fmt::format("block {} does not exist", block);
    if (is_free[block]) return fmt::format("block {} is free twice", block);
    is_free[block] = true;
  }
  int32_t idle_kept = 0;
  for (int32_t block = 0; block < num_blocks(); ++block) {
    idle_kept += is_idle_kept(block);
    if (is_kept_[block] && is_free[block]) return fmt::format("block {} is free and kept", block);
    if (references_[block] < 0) return fmt::format("block {} has a negative count", block);
    if (is_free[block] && references_[block] > 0)
      return fmt::format("block {} is free and referenced", block);
    if (!is_free[block] && references_[block] == 0)
      return fmt::format("block {} is neither free nor referenced", block);
  }
  if (idle_kept != idle_kept_)
    return fmt::format("{} idle blocks are counted but {} are kept", idle_kept_, idle_kept);
  return {};
}

}  // namespace invar
