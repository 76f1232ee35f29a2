// Which replica gets a request: of those that are not much busier than the least busy one, the one
// that has most likely computed the longest beginning of its prompt; among equals the least busy.
// It decides how fast an answer comes, never what it is.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace invar::server {

class PrefixRouter {
 public:
  // `block_size`: tokens that a replica's cache holds together.
  PrefixRouter(size_t replicas, int block_size);

  // The replica for a prompt, when each has so many live requests; from then on it is expected to
  // know the prompt. `salt`: only requests of one salt share what was computed.
  size_t choose(std::span<const int32_t> prompt, std::string_view salt,
                std::span<const size_t> live);

 private:
  // Replicas, as bits, that were given a prompt beginning with the blocks of this hash.
  using Known = std::unordered_map<uint64_t, uint64_t>;
  static constexpr size_t kMost = 1 << 16;  // of one age; 4 million tokens in blocks of 64

  uint64_t who_knows(uint64_t prefix) const;
  void remember(uint64_t prefix, size_t replica);

  const size_t replicas_, block_size_;
  Known recent_, older_;  // what is recent becomes what is older, which is forgotten
};

}  // namespace invar::server
