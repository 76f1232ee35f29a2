#include "drafters/draft_history.h"

#include <algorithm>

namespace invar {

DraftHistory::BlockPtr DraftHistory::allocate() {
  for (auto it = kept_.end(); *in_use_ >= most_ && it != kept_.begin();) {
    --it;
    if (it->block.use_count() > 1) continue;
    by_key_.erase(it->key);
    it = kept_.erase(it);
  }
  if (*in_use_ >= most_) return nullptr;
  return std::make_shared<Block>(in_use_, static_cast<size_t>(kBlock) * width_);
}

void DraftHistory::keep(uint64_t key, const BlockPtr& block) {
  if (find(key)) return;
  kept_.push_front({key, block});
  by_key_[key] = kept_.begin();
}

DraftHistory::BlockPtr DraftHistory::find(uint64_t key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->block;
}

// Of the key of the blocks before it and the tokens that its rows add, the last one's successor
// among them. A collision would make a wrong draft and no wrong answer.
uint64_t DraftHistory::Rows::next_key(uint64_t key, std::span<const int32_t> tokens,
                                      int32_t block) {
  for (int32_t i = block * kBlock; i <= (block + 1) * kBlock; ++i) {
    key = (key ^ static_cast<uint32_t>(tokens[i])) * 0x9e3779b97f4a7c15U;
    key ^= key >> 29;
  }
  return key;
}

void DraftHistory::Rows::clear() {
  blocks_.clear();
  key_ = 0;
  size_ = 0;
}

bool DraftHistory::Rows::restore(std::span<const int32_t> tokens, int32_t rows) {
  clear();
  if (rows % kBlock != 0 || std::ssize(tokens) <= rows) return false;
  for (int32_t b = 0; b < rows / kBlock; ++b) {
    key_ = next_key(key_, tokens, b);
    BlockPtr block = history_->find(key_);
    if (!block) return clear(), false;
    blocks_.push_back(std::move(block));
  }
  size_ = rows;
  return true;
}

bool DraftHistory::Rows::add(std::span<const int32_t> tokens, std::span<const float> key,
                             std::span<const float> value) {
  if (size_ % kBlock == 0) {
    BlockPtr block = history_->allocate();
    if (!block) return false;
    blocks_.push_back(std::move(block));
  }
  Block& block = *blocks_.back();
  const int64_t at = int64_t{size_ % kBlock} * history_->width_;
  std::ranges::copy(key, block.keys.begin() + at);
  std::ranges::copy(value, block.values.begin() + at);
  if (++size_ % kBlock == 0) {
    key_ = next_key(key_, tokens, size_ / kBlock - 1);
    history_->keep(key_, blocks_.back());
  }
  return true;
}

void DraftHistory::Rows::append_runs(int32_t rows, std::vector<KvRun>& runs) const {
  for (int32_t begin = 0; begin < rows; begin += kBlock) {
    const Block& block = *blocks_[static_cast<size_t>(begin / kBlock)];
    runs.push_back({block.keys.data(), block.values.data(), std::min(kBlock, rows - begin)});
  }
}

}  // namespace invar
