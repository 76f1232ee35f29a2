// SHA-256 (FIPS 180-4) by one thread.
#pragma once

#include <cstdint>

namespace invar::cuda {

namespace sha256 {

static __constant__ uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

__device__ __forceinline__ uint32_t rotated(uint32_t x, int by) {
  return __funnelshift_r(x, x, by);
}

struct State {
  uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

  // One block of 16 words, which are used up.
  __device__ void add(uint32_t (&w)[16]) {
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], i = h[7];
#pragma unroll
    for (int t = 0; t < 64; ++t) {
      uint32_t& x = w[t % 16];
      if (t >= 16) {
        const uint32_t two = w[(t + 14) % 16], fifteen = w[(t + 1) % 16];
        x += (rotated(two, 17) ^ rotated(two, 19) ^ two >> 10) + w[(t + 9) % 16] +
             (rotated(fifteen, 7) ^ rotated(fifteen, 18) ^ fifteen >> 3);
      }
      const uint32_t one = i + kRound[t] + x + ((e & f) ^ (~e & g)) +
                           (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25));
      const uint32_t two =
          (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      i = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e, h[5] += f, h[6] += g, h[7] += i;
  }
};

// The digest of `count` words that word(i) gives, big-endian as SHA-256 reads them.
template <typename Word>
__device__ State digest_of(int count, Word word) {
  State state;
  uint32_t w[16], next[16] = {};  // read while the block before is added
  const auto read = [&](int begin) {
    if (begin + 16 > count) return;
#pragma unroll
    for (int i = 0; i < 16; ++i) next[i] = word(begin + i);
  };
  read(0);
  for (int begin = 0; begin + 16 <= count; begin += 16) {
#pragma unroll
    for (int i = 0; i < 16; ++i) w[i] = next[i];
    read(begin + 16);
    state.add(w);
  }
  const int rest = count % 16, from = count - rest;
#pragma unroll
  for (int i = 0; i < 16; ++i) w[i] = i < rest ? word(from + i) : i == rest ? 0x80000000 : 0;
  if (rest >= 14) {
    state.add(w);
#pragma unroll
    for (int i = 0; i < 14; ++i) w[i] = 0;
  }
  w[14] = static_cast<uint32_t>(uint64_t(count) * 32 >> 32);
  w[15] = static_cast<uint32_t>(count) * 32;
  state.add(w);
  return state;
}

__device__ __forceinline__ uint32_t swapped(uint32_t x) {
  return __byte_perm(x, 0, 0x0123);
}

}  // namespace sha256

}  // namespace invar::cuda
