#include "kv/prefix_cache.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/error.h"

namespace invar {

namespace {

// One step of a 64-bit hash (the finalizer of splitmix64).
uint64_t mix(uint64_t hash, uint64_t value) {
  uint64_t z = (hash ^ value) + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace

PrefixCache::PrefixCache(BlockPool& pool, std::optional<SnapshotCells> snapshots,
                         uint64_t hash_mask)
    : pool_(pool), hash_mask_(hash_mask), snapshots_(snapshots) {
  if (snapshots) {
    snapshot_block_.resize(snapshots->count, -1);
    last_use_.resize(snapshots->count);
  }
  entries_.resize(pool.num_blocks());
  tokens_.resize(int64_t{pool.num_blocks()} * pool.block_size());
  buckets_.resize(std::bit_ceil(static_cast<uint32_t>(pool.num_blocks())), -1);
  pool.set_keeper(this);
}

PrefixCache::~PrefixCache() {
  clear();
  pool_.set_keeper(nullptr);
}

int32_t PrefixCache::match(std::span<const int32_t> tokens, std::string_view salt,
                           std::vector<int32_t>& blocks) {
  blocks.clear();
  const int32_t slots = pool_.block_size();
  int32_t parent = -1;
  // One token stays out: its logits are wanted.
  for (size_t begin = 0; begin + slots < tokens.size(); begin += slots) {
    const uint64_t hash = hash_of(parent, salt, &tokens[begin]);
    const int32_t block = find(hash, parent, salt, &tokens[begin]);
    if (block < 0) break;
    blocks.push_back(block);
    parent = block;
  }
  if (snapshots_)
    while (!blocks.empty() && entries_[blocks.back()].snapshot < 0) blocks.pop_back();
  if (blocks.empty()) return -1;
  touch_chain(blocks.back());
  if (!snapshots_) return -1;
  const int32_t number = entries_[blocks.back()].snapshot;
  use_snapshot(number);
  return snapshots_->first + number;
}

int32_t PrefixCache::insert(std::span<const int32_t> tokens, std::string_view salt,
                            BlockTable& table, int32_t state_at) {
  const int32_t slots = pool_.block_size();
  const int32_t full = static_cast<int32_t>(tokens.size()) / slots;
  CHECK(full <= table.num_blocks(), "tokens without blocks");
  int32_t parent = -1, with_state = -1;
  for (int32_t i = 0; i < full; ++i) {
    const int32_t* content = &tokens[i * slots];
    const uint64_t hash = hash_of(parent, salt, content);
    int32_t block = find(hash, parent, salt, content);
    if (block < 0) {
      block = table.blocks()[i];
      add(block, hash, parent, salt, content);
    } else if (block != table.blocks()[i]) {
      table.replace(i, block);
    }
    parent = block;
    if ((i + 1) * slots == state_at) with_state = block;
  }
  touch_chain(parent);
  return with_state >= 0 && entries_[with_state].snapshot < 0 ? take_snapshot(with_state) : -1;
}

int32_t PrefixCache::take_snapshot(int32_t block) {
  if (!snapshots_ || snapshots_->count == 0) return -1;
  const auto oldest = std::ranges::min_element(last_use_);
  const int32_t number = static_cast<int32_t>(oldest - last_use_.begin());
  if (snapshot_block_[number] >= 0) entries_[snapshot_block_[number]].snapshot = -1;
  snapshot_block_[number] = block;
  entries_[block].snapshot = number;
  use_snapshot(number);
  return snapshots_->first + number;
}

void PrefixCache::use_snapshot(int32_t number) {
  last_use_[number] = ++uses_;
}

void PrefixCache::clear() {
  // Ends of chains first.
  while (size_ > 0)
    for (int32_t block = oldest_; block >= 0;) {
      const int32_t newer = entries_[block].newer;
      if (entries_[block].children == 0) remove(block);
      block = newer;
    }
}

void PrefixCache::give_up_block() {
  // Blocks in use, and those whose children are not gone yet, count as used now. A block in use has
  // every block before it in use, so an idle end of a chain exists wherever an idle block does.
  for (;;) {
    const int32_t block = oldest_;
    CHECK(block >= 0, "no block to give up");
    if (pool_.is_idle_kept(block) && entries_[block].children == 0) return remove(block);
    unlink(block);
    link_newest(block);
  }
}

uint64_t PrefixCache::hash_of(int32_t parent, std::string_view salt, const int32_t* tokens) const {
  uint64_t hash = 0;
  if (parent >= 0)
    hash = entries_[parent].hash;
  else
    for (const char c : salt) hash = mix(hash, static_cast<unsigned char>(c));
  for (int32_t i = 0; i < pool_.block_size(); ++i)
    hash = mix(hash, static_cast<uint32_t>(tokens[i]));
  return hash & hash_mask_;
}

int32_t PrefixCache::find(uint64_t hash, int32_t parent, std::string_view salt,
                          const int32_t* tokens) const {
  const int32_t slots = pool_.block_size();
  int32_t block = buckets_[hash & (buckets_.size() - 1)];
  for (; block >= 0; block = entries_[block].next_in_bucket) {
    const Entry& e = entries_[block];
    if (e.hash == hash && e.parent == parent && (parent >= 0 || e.salt == salt) &&
        std::equal(tokens, tokens + slots, &tokens_[int64_t{block} * slots]))
      break;
  }
  return block;
}

void PrefixCache::add(int32_t block, uint64_t hash, int32_t parent, std::string_view salt,
                      const int32_t* tokens) {
  Entry& e = entries_[block];
  CHECK(!e.is_used, "a block with two entries");
  pool_.keep(block);
  e.is_used = true;
  e.hash = hash;
  e.parent = parent;
  e.children = 0;
  if (parent >= 0)
    ++entries_[parent].children;
  else
    e.salt = salt;
  std::copy(tokens, tokens + pool_.block_size(), &tokens_[int64_t{block} * pool_.block_size()]);
  e.next_in_bucket = bucket(hash);
  bucket(hash) = block;
  link_newest(block);
  ++size_;
}

void PrefixCache::remove(int32_t block) {
  Entry& e = entries_[block];
  int32_t* link = &bucket(e.hash);
  while (*link != block) link = &entries_[*link].next_in_bucket;
  *link = e.next_in_bucket;
  if (e.parent >= 0) --entries_[e.parent].children;
  e.salt.clear();
  e.is_used = false;
  if (e.snapshot >= 0) {
    snapshot_block_[e.snapshot] = -1;
    last_use_[e.snapshot] = 0;  // the next to be taken
    e.snapshot = -1;
  }
  unlink(block);
  --size_;
  pool_.drop_kept(block);
}

void PrefixCache::touch_chain(int32_t last) {
  for (int32_t block = last; block >= 0; block = entries_[block].parent) {
    unlink(block);
    link_newest(block);
  }
}

void PrefixCache::link_newest(int32_t block) {
  entries_[block].older = newest_;
  entries_[block].newer = -1;
  (newest_ >= 0 ? entries_[newest_].newer : oldest_) = block;
  newest_ = block;
}

void PrefixCache::unlink(int32_t block) {
  const Entry& e = entries_[block];
  (e.older >= 0 ? entries_[e.older].newer : oldest_) = e.newer;
  (e.newer >= 0 ? entries_[e.newer].older : newest_) = e.older;
}

std::string PrefixCache::check_integrity() const {
  int32_t used = 0, listed = 0;
  std::vector<int32_t> children(entries_.size(), 0);
  for (int32_t block = 0; block < std::ssize(entries_); ++block) {
    const Entry& e = entries_[block];
    if (!e.is_used) continue;
    ++used;
    if (e.snapshot >= 0 && snapshot_block_[e.snapshot] != block)
      return fmt::format("the snapshot of block {} is another one's", block);
    if (e.parent < 0) continue;
    if (!entries_[e.parent].is_used) return fmt::format("block {} lost its parent", block);
    if (pool_.is_idle_kept(e.parent) && !pool_.is_idle_kept(block))
      return fmt::format("block {} is in use but the block before it is not", block);
    ++children[e.parent];
  }
  for (int32_t block = oldest_; block >= 0; block = entries_[block].newer) ++listed;
  if (used != size_ || listed != size_)
    return fmt::format("{} entries are counted, {} exist, {} are listed", size_, used, listed);
  for (int32_t block = 0; block < std::ssize(entries_); ++block)
    if (entries_[block].is_used && entries_[block].children != children[block])
      return fmt::format("block {} counts {} children and has {}", block, entries_[block].children,
                         children[block]);
  return {};
}

}  // namespace invar
