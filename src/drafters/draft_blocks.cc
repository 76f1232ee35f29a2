#include "drafters/draft_blocks.h"

namespace invar {

DraftBlocks::DraftBlocks(int32_t blocks, int32_t block_size, int32_t cells)
    : pool_(blocks, block_size), cells_(cells) {
  for (int32_t cell = cells; cell-- > 0;) free_cells_.push_back(cell);
}

void DraftBlocks::erase(Tables::iterator entry) {
  if (entry->second.cell >= 0) free_cells_.push_back(entry->second.cell);
  tables_.erase(entry);
}

void DraftBlocks::forget(int64_t id) {
  if (const auto found = tables_.find(id); found != tables_.end()) erase(found);
}

void DraftBlocks::forget_all() {
  while (!tables_.empty()) erase(tables_.begin());
}

bool DraftBlocks::take_cell(Entry& entry) {
  if (cells_ == 0 || entry.cell >= 0) return true;
  while (free_cells_.empty())
    if (!evict_one()) return false;
  entry.cell = free_cells_.back();
  free_cells_.pop_back();
  return true;
}

bool DraftBlocks::grow(int64_t id, int64_t slots) {
  Entry& entry = tables_.try_emplace(id, Entry{BlockTable(pool_)}).first->second;
  entry.round = round_;
  const int32_t missing = pool_.blocks_for(slots) - entry.table.num_blocks();
  return take_cell(entry) && (missing <= 0 || (make_free(missing) && entry.table.grow(slots)));
}

int64_t DraftBlocks::capacity(int64_t id) const {
  const auto found = tables_.find(id);
  return found == tables_.end() ? 0 : found->second.table.capacity();
}

std::span<const int32_t> DraftBlocks::blocks(int64_t id) const {
  return tables_.at(id).table.blocks();
}

bool DraftBlocks::make_free(int32_t blocks) {
  if (blocks > pool_.num_blocks()) return false;
  while (pool_.free_blocks() < blocks)
    if (!evict_one()) return false;
  return true;
}

bool DraftBlocks::evict_one() {
  auto oldest = tables_.end();
  for (auto it = tables_.begin(); it != tables_.end(); ++it)
    if (it->second.round < round_ && it->second.table.num_blocks() > 0 &&
        (oldest == tables_.end() || it->second.round < oldest->second.round))
      oldest = it;
  if (oldest == tables_.end()) return false;
  erase(oldest);
  return true;
}

// They are free again at once: nothing is allocated before they are used.
bool DraftBlocks::take_scratch(int32_t count, std::vector<int32_t>& blocks) {
  blocks.clear();
  if (!make_free(count)) return false;
  for (int32_t i = 0; i < count; ++i) blocks.push_back(pool_.allocate());
  for (const int32_t block : blocks) pool_.release(block);
  return true;
}

}  // namespace invar
