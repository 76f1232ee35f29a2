// The random numbers of sampling (numerics 6): functions of (seed, position, choice, purpose,
// token), nothing carried from sample to sample.
#pragma once

#include <cstdint>

#include "numerics/math.h"
#include "numerics/philox.h"

namespace invar {

// Names one row of random numbers, one number for each token id.
struct NoiseKey {
  uint64_t seed = 0;
  uint32_t position = 0;  // of the token sampled
  uint32_t choice = 0;    // which of the n answers
  RandomPurpose purpose = RandomPurpose::sample;
};

constexpr uint32_t random_bits(const NoiseKey& key, uint32_t token) {
  return philox4x32({key.position, token >> 2, key.choice, static_cast<uint32_t>(key.purpose)},
                    key.seed)[token & 3];
}
// In (0, 1).
constexpr double uniform_of(uint32_t bits) {
  return (bits + 0.5) * 0x1p-32;
}
// Gumbel noise, between -3.14 and kMaxGumbel; the larger the bits, the larger.
constexpr double gumbel_of(uint32_t bits) {
  return -math::log(-math::log(uniform_of(bits)));
}
constexpr double kMaxGumbel = 22.88;

// random_bits of tokens 32 * block .. 32 * block + 31.
constexpr int kNoiseBlock = 32;
void random_block(const NoiseKey& key, uint32_t block, uint32_t* bits);

}  // namespace invar
