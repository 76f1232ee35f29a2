#include "kernels/cuda/chunk_digests.h"

#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/sha256.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 32, kDigestWords = 8;

// A chunk is a thread's.
__global__ void hash_chunks(const uint32_t* words, int64_t count, int64_t chunk, int64_t chunks,
                            uint32_t* digests) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= chunks) return;
  const uint32_t* mine = words + i * chunk;
  const int64_t rest = count - i * chunk;
  const sha256::State state = sha256::digest_of(static_cast<int>(rest < chunk ? rest : chunk),
                                                [&](int n) { return sha256::swapped(mine[n]); });
#pragma unroll
  for (int n = 0; n < kDigestWords; ++n)
    digests[i * kDigestWords + n] = sha256::swapped(state.h[n]);
}

int64_t chunks_of(const GpuValues& one, int64_t chunk) {
  return (one.count + chunk - 1) / chunk;
}

}  // namespace

std::vector<Digest> chunk_digests(Device& device, std::span<const GpuValues> all, int64_t chunk) {
  int64_t chunks = 0;
  for (const GpuValues& one : all) chunks += chunks_of(one, chunk);
  std::vector<Digest> found(static_cast<size_t>(chunks));
  if (found.empty()) return found;
  const DeviceArray<Digest> digests(device, found.size(), "the digests of chunks");
  const auto stream = device.make_stream();
  auto* to = reinterpret_cast<uint32_t*>(digests.data());
  for (const GpuValues& one : all) {
    const int64_t own = chunks_of(one, chunk), words = bytes_of(one.type, 1);
    if (own == 0) continue;
    hash_chunks<<<static_cast<unsigned>((own + kThreads - 1) / kThreads), kThreads, 0,
                  static_cast<CudaStream&>(*stream).use()>>>(
        static_cast<const uint32_t*>(one.data), one.count * words / 4, chunk * words / 4, own, to);
    cuda_launched("hashing weights");
    to += own * kDigestWords;
  }
  stream->wait();
  device.download(found.data(), digests.data(), found.size() * sizeof(Digest));
  return found;
}

}  // namespace invar::cuda
