// Hashes positions (numerics 8): SHA-256 (FIPS 180-4) of chunks of 4096 logits, a thread each, then
// of their digests.
#include "kernels/cuda/operations.h"
#include "kernels/cuda/sha256.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/sample.h"

namespace invar::cuda {

namespace {

using sha256::digest_of;
using sha256::State;
using sha256::swapped;

constexpr int kChunk = 4096, kThreads = 32, kDigestWords = 8;

// The words of a digest follow each other as they are, to be hashed again.
__global__ void hash_chunks_kernel(HashLogitsParams p, int chunks) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.count * chunks) return;
  const int64_t begin = i % chunks * kChunk;
  const float* x = p.logits + p.rows[i / chunks] * p.vocab + begin;
  const int count = static_cast<int>(p.vocab - begin < kChunk ? p.vocab - begin : kChunk);
  const State state = digest_of(count, [&](int n) {
    const float value = x[n];
    return swapped(value == 0.0f ? 0u : __float_as_uint(value));  // -0 as +0
  });
  uint32_t* to = reinterpret_cast<uint32_t*>(p.chunks) + i * kDigestWords;
#pragma unroll
  for (int n = 0; n < kDigestWords; ++n) to[n] = state.h[n];
}

__global__ void hash_positions_kernel(HashLogitsParams p, int chunks) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.count) return;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(p.chunks) + i * chunks * kDigestWords;
  const State state = digest_of(chunks * kDigestWords, [&](int n) { return words[n]; });
  uint32_t* to = reinterpret_cast<uint32_t*>(p.digests) + i * kDigestWords;
#pragma unroll
  for (int n = 0; n < kDigestWords; ++n) to[n] = swapped(state.h[n]);
}

}  // namespace

void hash_logits(const HashLogitsParams& p, const Execution& on) {
  if (p.count == 0) return;
  const int chunks = static_cast<int>((p.vocab + kChunk - 1) / kChunk);
  const auto blocks = [](int64_t threads) {
    return static_cast<int>((threads + kThreads - 1) / kThreads);
  };
  launch("hashing logits", hash_chunks_kernel,
         {.blocks = blocks(p.count * chunks), .threads = kThreads, .shared_bytes = 0}, on, p,
         chunks);
  launch("hashing logits", hash_positions_kernel,
         {.blocks = blocks(p.count), .threads = kThreads, .shared_bytes = 0}, on, p, chunks);
}

}  // namespace invar::cuda
