#include "kv/block_table.h"

#include <utility>

#include "base/check.h"

namespace invar {

BlockTable::BlockTable(BlockTable&& other) noexcept
    : pool_(other.pool_),
      capacity_(std::exchange(other.capacity_, 0)),
      blocks_(std::exchange(other.blocks_, {})) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(capacity_, other.capacity_);
  std::swap(blocks_, other.blocks_);
  return *this;
}

bool BlockTable::take_blocks(int64_t slots) {
  const int32_t missing = pool_->blocks_for(slots) - num_blocks();
  if (missing > pool_->free_blocks()) return false;
  for (int32_t i = 0; i < missing; ++i) append(pool_->allocate());
  return true;
}

void BlockTable::append(int32_t block) {
  blocks_.push_back(block);
  capacity_ += pool_->block_size();
}

void BlockTable::truncate(int64_t slots) {
  const int32_t keep = pool_->blocks_for(slots);
  while (num_blocks() > keep) {
    pool_->release(blocks_.back());
    blocks_.pop_back();
    capacity_ -= pool_->block_size();
  }
}

void BlockTable::share(std::span<const int32_t> blocks) {
  for (const int32_t block : blocks) {
    pool_->add_reference(block);
    append(block);
  }
}

void BlockTable::replace(int32_t index, int32_t block) {
  pool_->add_reference(block);
  pool_->release(blocks_[index]);
  blocks_[index] = block;
}

bool BlockTable::fork(const BlockTable& source, int64_t slots, std::vector<SlotCopy>& copies) {
  CHECK(blocks_.empty(), "fork into a table that holds blocks");
  CHECK(slots <= source.capacity(), "fork of more slots than the source has");
  const int32_t full = static_cast<int32_t>(slots / pool_->block_size());
  const int32_t rest = static_cast<int32_t>(slots % pool_->block_size());
  if (rest > 0 && pool_->free_blocks() == 0) return false;
  share(source.blocks().first(full));
  if (rest > 0) {
    append(pool_->allocate());
    copies.push_back({.from = source.blocks_[full], .to = blocks_[full], .begin = 0, .end = rest});
  }
  return true;
}

}  // namespace invar
