// The tree of 2, 4 or 8 runs of a tile whose dots 256 threads have (numerics 2).
#pragma once

namespace invar::cuda {

namespace {

// 256 threads' float4 stand side by side.
template <int kValues>
__device__ __forceinline__ void park(const float (&d)[kValues], float4* to) {
#pragma unroll
  for (int i = 0; i < kValues / 4; ++i)
    to[i * 256] = {d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]};
}
template <int kValues>
__device__ __forceinline__ void add_parked(const float4* from, float (&d)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues / 4; ++i) {
    const float4 first = from[i * 256];
    d[4 * i] = first.x + d[4 * i];
    d[4 * i + 1] = first.y + d[4 * i + 1];
    d[4 * i + 2] = first.z + d[4 * i + 2];
    d[4 * i + 3] = first.w + d[4 * i + 3];
  }
}
// Runs come one after the other. Sums of two and of four wait at `parked` and behind it.
template <int kValues>
struct RunTree {
  float4* parked;
  float pair[kValues];

  // Adds run number `run` of `runs`; after the last one `pair` has the sums of all.
  __device__ __forceinline__ void add(int run, int runs, const float (&sum)[kValues]) {
    float4* four = parked + 256 * (kValues / 4);
#pragma unroll
    for (int i = 0; i < kValues; ++i) pair[i] = run % 2 == 0 ? sum[i] : pair[i] + sum[i];
    if (run % 2 == 0) return;
    if (run % 4 == 3) add_parked<kValues>(parked, pair);
    if (run == 7) add_parked<kValues>(four, pair);
    if (run + 1 < runs) park<kValues>(pair, run == 3 ? four : parked);
  }
};

}  // namespace

}  // namespace invar::cuda
