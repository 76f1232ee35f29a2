#include "prefix_router.h"

#include <xxhash.h>

#include <algorithm>

#include "base/check.h"

namespace invar::server {

namespace {

// How many more requests than the least busy replica one may have and still be chosen for what it
// knows: a prompt computed again costs less than a long wait.
size_t most_live(size_t least) {
  return least + std::max<size_t>(4, least / 4);
}

}  // namespace

PrefixRouter::PrefixRouter(size_t replicas, int block_size)
    : replicas_(replicas), block_size_(static_cast<size_t>(block_size)) {
  CHECK(1 <= replicas && replicas <= 64, "replicas are bits of a word");
  CHECK(block_size > 0, "blocks hold tokens");
}

size_t PrefixRouter::choose(std::span<const int32_t> prompt, std::string_view salt,
                            std::span<const size_t> live) {
  const size_t most = most_live(*std::ranges::min_element(live));
  uint64_t candidates = 0;
  for (size_t i = 0; i < replicas_; ++i)
    if (live[i] <= most) candidates |= uint64_t{1} << i;
  // A hash for each whole block, of all before it, too. At least one token is left to compute.
  std::vector<uint64_t> prefixes;
  uint64_t hash = XXH3_64bits(salt.data(), salt.size());
  for (size_t end = block_size_; end < prompt.size(); end += block_size_) {
    const int32_t* block = prompt.data() + end - block_size_;
    hash = XXH3_64bits_withSeed(block, block_size_ * sizeof(int32_t), hash);
    prefixes.push_back(hash);
  }
  for (const uint64_t prefix : prefixes) {
    const uint64_t further = candidates & who_knows(prefix);
    if (!further) break;
    candidates = further;
  }
  size_t chosen = replicas_;
  for (size_t i = 0; i < replicas_; ++i)
    if (candidates >> i & 1 && (chosen == replicas_ || live[i] < live[chosen])) chosen = i;
  for (const uint64_t prefix : prefixes) remember(prefix, chosen);
  return chosen;
}

uint64_t PrefixRouter::who_knows(uint64_t prefix) const {
  uint64_t who = 0;
  for (const Known* known : {&recent_, &older_})
    if (const auto found = known->find(prefix); found != known->end()) who |= found->second;
  return who;
}

void PrefixRouter::remember(uint64_t prefix, size_t replica) {
  if (recent_.size() >= kMost) {
    older_ = std::move(recent_);
    recent_.clear();
  }
  recent_[prefix] |= uint64_t{1} << replica;
}

}  // namespace invar::server
