// What becomes of the splits of single rows (attention_single.cu) where several blocks compute
// them.
#pragma once

#include "kernels/cuda/attention_pieces.cuh"

namespace invar::cuda {

// Merges the splits of one row and head in ascending order, kMergeElements of a head's by a block:
// a lane of its first warp has one. They come in pieces through a ring; the factors of a window of
// splits come from a running maximum, all at the same time.
constexpr int kMergeThreads = 256, kWindow = kMergeThreads, kPiece = kWarp, kPieces = 16;
constexpr int kMergeElements = kWarp, kMergePieceBytes = kPiece * kMergeElements * 4,
              kMergeBytes = kPieces * (kMergePieceBytes + 8);

template <int kHeadDim>
constexpr int kMergeBlocks = (kHeadDim + kMergeElements - 1) / kMergeElements;  // of a head

// What a window's splits do to the state, and their sums, by a thread for each; `before` is the
// maximum of all windows before, then of this one, too.
__device__ __forceinline__ float4 factors_of(float2 mine, float* tops, float& before) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float top = mine.x;  // of this and all earlier splits of the window
#pragma unroll
  for (int apart = 1; apart < kWarp; apart *= 2) {
    const float other = __shfl_up_sync(kAllLanes, top, apart);
    if (lane >= apart) top = fmaxf(top, other);
  }
  if (lane == kWarp - 1) tops[warp] = top;
  float max = __shfl_up_sync(kAllLanes, top, 1);
  if (lane == 0) max = kMinusInfinity;
  __syncthreads();
  max = fmaxf(max, before);
  for (int w = 0; w < kMergeThreads / kWarp; ++w) {
    if (w < warp) max = fmaxf(max, tops[w]);
    before = fmaxf(before, tops[w]);
  }
  float a, b;
  join(max, mine.x, a, b);
  return {a, b, mine.y * b, 0.0f};
}

template <int kHeadDim>
__global__ __launch_bounds__(kMergeThreads) void merge_kernel(const AttentionParams p,
                                                              const SingleWork work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ float4 factors[kWindow];  // a, b and l * b
  __shared__ float tops[kMergeThreads / kWarp];
  const int block = static_cast<int>(blockIdx.x) / kMergeBlocks<kHeadDim>,
            element = static_cast<int>(blockIdx.x) % kMergeBlocks<kHeadDim> * kMergeElements,
            elements = min(kMergeElements, kHeadDim - element);
  const int row = block / p.heads, head = block % p.heads;
  const int tid = threadIdx.x, lane = tid % kWarp;
  const bool is_first_warp = tid < kWarp;
  const uint32_t base = shared_address(shared), full = base + kPieces * kMergePieceBytes;
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
  const float* out = work.parts.out + at * kHeadDim + element;
  const float2* of = work.parts.sums + at;
  const auto fetch_piece = [&](int piece) {  // by a warp, a lane for each split
    const int count = min(kPiece, parts - piece * kPiece), slot = piece % kPieces;
    if (lane == 0) barrier_expect(full + 8 * slot, count * elements * 4);
    __syncwarp();
    if (lane < count)
      load_bytes(base + slot * kMergePieceBytes + lane * kMergeElements * 4,
                 out + (piece * kPiece + lane) * int64_t{kHeadDim}, elements * 4, full + 8 * slot);
  };
  const int pieces = (parts + kPiece - 1) / kPiece;
  for (int piece = 0; is_first_warp && piece < min(pieces, kPieces); ++piece) fetch_piece(piece);

  float max = kMinusInfinity, sum = 0.0f, state = 0.0f;
  const auto merge_piece = [&](int piece, int first) {
    const int to = min(kPiece, parts - piece * kPiece);
    barrier_wait(full + 8 * (piece % kPieces), piece / kPieces & 1);
    const float* part = reinterpret_cast<const float*>(shared + piece % kPieces * kMergePieceBytes);
#pragma unroll 8
    for (int n = 0; n < to; ++n) {
      const float4 f = factors[first + n];
      sum = __fmaf_rn(sum, f.x, f.z);
      state = __fmaf_rn(state, f.x, __fmaf_rn(part[n * kMergeElements + lane], f.y, 0.0f));
    }
    __syncwarp();
    if (piece + kPieces < pieces) fetch_piece(piece + kPieces);
  };
  const auto sums_at = [&](int first) {
    return first + tid < parts ? of[first + tid] : float2{kMinusInfinity, 0.0f};
  };
  float2 mine = sums_at(0);
  for (int first = 0; first < parts; first += kWindow) {
    const float4 own = factors_of(mine, tops, max);
    factors[tid] = own;
    mine = sums_at(first + kWindow);
    __syncthreads();
    for (int i = 0; is_first_warp && i < min(kWindow, parts - first); i += kPiece)
      merge_piece((first + i) / kPiece, i);
    __syncthreads();  // the factors have been read
  }
  if (p.sinks) state = __fmaf_rn(state, join_sink(p.sinks, head, max, sum), 0.0f);
  if (tid < elements)
    static_cast<bf16_t*>(p.out.data)[t * p.out.stride + int64_t{head} * kHeadDim + element + tid] =
        f32_to_bf16(state / sum);
  if (head == 0 && element == 0) clear_padding(p, t, tid, kMergeThreads);
}

}  // namespace invar::cuda
