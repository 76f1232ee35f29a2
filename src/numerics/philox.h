// Philox4x32-10, the counter-based random generator of Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011): output = function of (key, counter), nothing carried from sample
// to sample.
#pragma once

#include <array>
#include <cstdint>

namespace invar {

using PhiloxCounter = std::array<uint32_t, 4>;

constexpr PhiloxCounter philox4x32(PhiloxCounter counter, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// The purpose of a random number (numerics 6): a part of the counter, so that uses never share
// noise.
enum class RandomPurpose : uint32_t {
  sample = 0,
  accept = 1,
  residual = 2,
  weight = 3,
  corpus = 4,
  rollout = 5
};

}  // namespace invar
