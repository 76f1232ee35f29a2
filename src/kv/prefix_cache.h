// Blocks of sequences that are over, kept for others that begin with the same tokens. Since the
// bits of keys and values depend on the tokens before them alone, a block found here is the block
// that would be computed.
//
// An entry is a full block with the tokens of its slots and the entry of the block before it, so a
// chain of entries is a prefix; tokens are compared, not only their hashes. Entries of different
// salts never meet. Idle blocks are given up least recently used first, the end of a chain before
// its beginning. Which entry that is depends on the calls so far alone.
//
// Where layers have a state of each sequence, a prefix is of use up to an entry with a snapshot of
// the states at its end. There are a fixed number of these, in cells of their own; the one least
// recently used is given up for the next.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/block_pool.h"
#include "kv/block_table.h"

namespace invar {

// Cells first .. first + count - 1 of the states.
struct SnapshotCells {
  int32_t first = 0, count = 0;
};

class PrefixCache final : public BlockKeeper {
 public:
  // Becomes the pool's keeper. `hash_mask` is for tests: fewer bits, more collisions.
  explicit PrefixCache(BlockPool& pool, std::optional<SnapshotCells> snapshots = {},
                       uint64_t hash_mask = ~uint64_t{0});
  ~PrefixCache() override;
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The blocks of the longest known prefix of `tokens`, in whole blocks and at least one token
  // short, so that something is left to compute. The caller shares them before anything else is
  // allocated. Where states are needed, too, the prefix ends with the last snapshot in it, whose
  // cell is returned; else -1.
  int32_t match(std::span<const int32_t> tokens, std::string_view salt,
                std::vector<int32_t>& blocks);
  // Enters the full blocks of a table whose first slots hold `tokens`. Where another block is known
  // for the same prefix, the table takes that one and gives its own back. Returns the cell that the
  // states behind the first `state_at` slots are to be copied to before anything else is; -1 where
  // they are there already, or no entry ends there.
  int32_t insert(std::span<const int32_t> tokens, std::string_view salt, BlockTable& table,
                 int32_t state_at = 0);
  // Forgets everything: after the weights change.
  void clear();

  int32_t size() const { return size_; }
  void give_up_block() override;
  // Empty when the structure is sound; else what is wrong.
  std::string check_integrity() const;

 private:
  // The entry of a block, at the block's index. Links are blocks; -1 is none.
  struct Entry {
    bool is_used = false;
    uint64_t hash = 0;  // of the prefix
    int32_t parent = -1;
    int32_t children = 0;
    int32_t next_in_bucket = -1;
    int32_t older = -1, newer = -1;
    int32_t snapshot = -1;  // number of it
    std::string salt;       // of entries without a parent
  };

  uint64_t hash_of(int32_t parent, std::string_view salt, const int32_t* tokens) const;
  // The block of the entry with this parent and these tokens, or -1.
  int32_t find(uint64_t hash, int32_t parent, std::string_view salt, const int32_t* tokens) const;
  void add(int32_t block, uint64_t hash, int32_t parent, std::string_view salt,
           const int32_t* tokens);
  void remove(int32_t block);
  // Makes a chain the most recently used, its beginning most of all.
  void touch_chain(int32_t last);
  void link_newest(int32_t block);
  void unlink(int32_t block);
  int32_t take_snapshot(int32_t block);
  void use_snapshot(int32_t number);
  int32_t& bucket(uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }

  BlockPool& pool_;
  const uint64_t hash_mask_;
  std::vector<Entry> entries_;    // by block
  std::vector<int32_t> tokens_;   // [block][slot]
  std::vector<int32_t> buckets_;  // first block of each; as many as a power of two
  int32_t oldest_ = -1, newest_ = -1;
  int32_t size_ = 0;
  const std::optional<SnapshotCells> snapshots_;
  std::vector<int32_t> snapshot_block_;  // by number; -1: free
  std::vector<int64_t> last_use_;        // by number
  int64_t uses_ = 0;
};

}  // namespace invar
