// Blocks of sequences that are over, kept for others that begin with the same tokens. Since the
// bits of keys and values depend on the tokens before them alone, a block found here is the block
// that would be computed.
//
// An entry is a full block with the tokens of its slots and the entry of the block before it, so a
// chain of entries is a prefix; tokens are compared, not only their hashes. Entries of different
// salts never meet. Idle blocks are given up least recently used first, the end of a chain before
// its beginning. Which entry that is depends on the calls so far alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/block_pool.h"
#include "kv/block_table.h"

namespace invar {

class PrefixCache final : public BlockKeeper {
 public:
  // Becomes the pool's keeper. `hash_mask` is for tests: fewer bits, more collisions.
  explicit PrefixCache(BlockPool& pool, uint64_t hash_mask = ~uint64_t{0});
  ~PrefixCache() override;
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The blocks of the longest known prefix of `tokens`, in whole blocks and at least one token
  // short, so that something is left to compute. The caller shares them before anything else is
  // allocated.
  void match(std::span<const int32_t> tokens, std::string_view salt, std::vector<int32_t>& blocks);
  // Enters the full blocks of a table whose first slots hold `tokens`. Where another block is known
  // for the same prefix, the table takes that one and gives its own back.
  void insert(std::span<const int32_t> tokens, std::string_view salt, BlockTable& table);
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
    std::string salt;  // of entries without a parent
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
  int32_t& bucket(uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }

  BlockPool& pool_;
  const uint64_t hash_mask_;
  std::vector<Entry> entries_;    // by block
  std::vector<int32_t> tokens_;   // [block][slot]
  std::vector<int32_t> buckets_;  // first block of each; as many as a power of two
  int32_t oldest_ = -1, newest_ = -1;
  int32_t size_ = 0;
};

}  // namespace invar
