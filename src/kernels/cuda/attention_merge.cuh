// What becomes of the splits of single rows (attention_single.cu) where several blocks compute
// them.
#pragma once

#include "kernels/cuda/attention_pieces.cuh"

namespace invar::cuda {

// Merges the splits of one row and head in ascending order; a thread has one head element. The
// splits come in pieces through a ring; the factors of a window of them come from a running
// maximum, all at the same time.
constexpr int kMergeThreads = 256, kWindow = 256, kPiece = 32, kPieces = 4;

template <int kHeadDim>
constexpr int kMergeBytes = kPieces*(kPiece* kHeadDim * 4 + 8);

template <int kHeadDim>
__global__ __launch_bounds__(kMergeThreads) void merge_kernel(const AttentionParams p,
                                                              const SingleWork work) {
  constexpr int kPieceBytes = kPiece * kHeadDim * 4;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ float2 factors[kWindow];  // a and b
  __shared__ float sums[kWindow], tops[kMergeThreads / kWarp];
  const int row = static_cast<int>(blockIdx.x) / p.heads, head = blockIdx.x % p.heads;
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  const uint32_t base = shared_address(shared), full = base + kPieces * kPieceBytes;
  if (tid == 0) {
    for (int i = 0; i < kPieces; ++i) barrier_init(full + 8 * i, 1);
    barriers_are_ready();
  }
  __syncthreads();
  let_next_kernel_start();
  const AttentionCuts cuts = cuts_of(p, work);
  const bool is_row = row < cuts.rows && cuts.may_cut;  // else it was merged at once
  const int64_t t = is_row ? row_of(work, row) : 0;
  const int splits = splits_of(p, t).count, share = (splits + work.chunks - 1) / work.chunks,
            parts = work.by_count ? (splits + share - 1) / share : splits;
  const int64_t at =
      int64_t{splits_before(p, work, is_row ? row : 0)} * p.heads + int64_t{head} * splits;
  wait_for_kernels_before();
  if (!is_row) return;
  const float* out = work.parts.out + at * kHeadDim;
  const float2* of = work.parts.sums + at;
  const auto fetch_piece = [&](int piece) {
    const int first = piece * kPiece, at = piece % kPieces;
    const uint32_t bytes = min(kPiece, parts - first) * kHeadDim * 4;
    barrier_expect(full + 8 * at, bytes);
    load_bytes(base + at * kPieceBytes, out + first * int64_t{kHeadDim}, bytes, full + 8 * at);
  };
  const int pieces = (parts + kPiece - 1) / kPiece;
  if (tid == 0)
    for (int piece = 0; piece < min(pieces, kPieces); ++piece) fetch_piece(piece);

  float max = kMinusInfinity, sum = 0.0f, state = 0.0f;
  const int e = min(tid, kHeadDim - 1);
  for (int first = 0; first < parts; first += kWindow) {
    const int count = min(kWindow, parts - first);
    const float2 mine = tid < count ? of[first + tid] : float2{kMinusInfinity, 0.0f};
    float top = mine.x;  // of this and all earlier splits of the window
#pragma unroll
    for (int apart = 1; apart < kWarp; apart *= 2) {
      const float other = __shfl_up_sync(kAllLanes, top, apart);
      if (lane >= apart) top = fmaxf(top, other);
    }
    if (lane == kWarp - 1) tops[warp] = top;
    float before = __shfl_up_sync(kAllLanes, top, 1);
    if (lane == 0) before = kMinusInfinity;
    __syncthreads();
    before = fmaxf(before, max);
    for (int w = 0; w < warp; ++w) before = fmaxf(before, tops[w]);
    for (const float x : tops) max = fmaxf(max, x);
    float2 mine_factors;
    join(before, mine.x, mine_factors.x, mine_factors.y);
    factors[tid] = mine_factors;
    sums[tid] = mine.y * mine_factors.y;
    __syncthreads();
    for (int i = 0; i < count; i += kPiece) {
      const int piece = (first + i) / kPiece, at = piece % kPieces, to = min(kPiece, count - i);
      barrier_wait(full + 8 * at, piece / kPieces & 1);
      const float* part = reinterpret_cast<const float*>(shared + at * kPieceBytes) + e;
#pragma unroll 8
      for (int n = 0; n < to; ++n) {
        const float2 f = factors[i + n];
        sum = __fmaf_rn(sum, f.x, sums[i + n]);
        state = __fmaf_rn(state, f.x, __fmaf_rn(part[n * kHeadDim], f.y, 0.0f));
      }
      __syncthreads();
      if (tid == 0 && piece + kPieces < pieces) fetch_piece(piece + kPieces);
    }
  }
  if (p.sinks) state = __fmaf_rn(state, join_sink(p.sinks, head, max, sum), 0.0f);
  if (tid < kHeadDim)
    static_cast<bf16_t*>(p.out.data)[t * p.out.stride + int64_t{head} * kHeadDim + tid] =
        f32_to_bf16(state / sum);
  if (head == 0) clear_padding(p, t, tid, kMergeThreads);
}

}  // namespace invar::cuda
