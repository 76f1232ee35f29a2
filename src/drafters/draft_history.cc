#include "drafters/draft_history.h"

namespace invar {

bool DraftHistory::make_free(int32_t blocks) {
  for (auto it = kept_.end(); pool_.free_blocks() < blocks && it != kept_.begin();) {
    --it;
    if (pool_.references(it->block) > 1) continue;
    pool_.release(it->block);
    by_key_.erase(it->key);
    it = kept_.erase(it);
  }
  return pool_.free_blocks() >= blocks;
}

bool DraftHistory::grow(BlockTable& table, int64_t slots) {
  const int32_t missing = pool_.blocks_for(slots) - table.num_blocks();
  return missing <= 0 || (make_free(missing) && table.grow(slots));
}

bool DraftHistory::fork(const BlockTable& table, int64_t slots, BlockTable& copy,
                        std::vector<SlotCopy>& copies) {
  return make_free(1) && copy.fork(table, slots, copies);
}

void DraftHistory::keep(uint64_t key, int32_t block) {
  if (find(key) >= 0) return;
  pool_.add_reference(block);
  kept_.push_front({key, block});
  by_key_[key] = kept_.begin();
}

int32_t DraftHistory::find(uint64_t key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return -1;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->block;
}

// The key is made of the key of the blocks before and the tokens that the rows add, the last one's
// successor among them. A collision would make a wrong draft and no wrong answer.
uint64_t DraftHistory::Rows::next_key(uint64_t key, std::span<const int32_t> tokens,
                                      int32_t block) {
  for (int32_t i = block * kBlock; i <= (block + 1) * kBlock; ++i) {
    key = (key ^ static_cast<uint32_t>(tokens[i])) * 0x9e3779b97f4a7c15U;
    key ^= key >> 29;
  }
  return key;
}

void DraftHistory::Rows::clear() {
  table_.clear();
  key_ = 0;
  size_ = 0;
}

bool DraftHistory::Rows::restore(std::span<const int32_t> tokens, int32_t rows) {
  clear();
  if (rows % kBlock != 0 || std::ssize(tokens) <= rows) return false;
  for (int32_t b = 0; b < rows / kBlock; ++b) {
    key_ = next_key(key_, tokens, b);
    const int32_t block = history_->find(key_);
    if (block < 0) return clear(), false;
    table_.share({&block, 1});
  }
  size_ = rows;
  return true;
}

void DraftHistory::Rows::add(std::span<const int32_t> tokens, int32_t rows) {
  for (const int32_t end = size_ + rows; size_ < end;) {
    if (++size_ % kBlock != 0) continue;
    const int32_t block = size_ / kBlock - 1;
    key_ = next_key(key_, tokens, block);
    history_->keep(key_, table_.blocks()[static_cast<size_t>(block)]);
  }
}

}  // namespace invar
