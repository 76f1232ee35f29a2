// What becomes of the splits of single rows (attention_single.cu) where several blocks compute
// them.
#pragma once

#include "kernels/cuda/attention_rows.cuh"

namespace invar::cuda {

// Where the results of splits wait: [row][head][split of the row].
struct Parts {
  float* out;    // [.][E]
  float2* sums;  // m and l
  int splits;    // room for so many of a row; rows of more are done by one block each
};

struct SingleWork {
  int query_blocks;  // of up to 8 heads, of a key/value head
  int chunks;        // blocks for a row's splits
  int units;         // rows, heads and chunks in all
  int stages;
  bool by_count;   // the baseline: a block merges its splits before others do (numerics 10)
  bool has_tiles;  // rows of tables of many rows are not this kernel's
  float c;
  Parts parts;
};

// The splits of a row.
struct Splits {
  int first, count;
};
__device__ __forceinline__ Splits splits_of(const AttentionParams& p, int64_t t) {
  const int first = first_slot(p, t) / kSplitSlots;
  return {first, p.positions[t] / kSplitSlots + 1 - first};
}

// M and the factors of what there is and of the split (numerics 4, step 4), from M = -inf on.
__device__ __forceinline__ void join(float& max, float split_max, float& a, float& b) {
  const float e = exp2_below_128(-fabsf(max - split_max));
  a = split_max > max ? e : 1.0f;
  b = split_max > max ? 1.0f : e;
  max = fmaxf(max, split_max);
}

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
  const int64_t t = blockIdx.x / p.heads;
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  const uint32_t base = shared_address(shared), full = base + kPieces * kPieceBytes;
  if (tid == 0) {
    for (int i = 0; i < kPieces; ++i) barrier_init(full + 8 * i, 1);
    barriers_are_ready();
  }
  __syncthreads();
  let_next_kernel_start();
  const Splits splits = splits_of(p, t);
  const int share = (splits.count + work.chunks - 1) / work.chunks;
  const int parts = work.by_count ? (splits.count + share - 1) / share : splits.count;
  const bool is_another = (work.has_tiles && has_many_rows(p, t)) ||  // kernel's row
                          parts > work.parts.splits;                  // or was merged at once
  wait_for_kernels_before();
  if (is_another) return;
  const float* out = work.parts.out + blockIdx.x * int64_t{work.parts.splits} * kHeadDim;
  const float2* of = work.parts.sums + blockIdx.x * int64_t{work.parts.splits};
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
  if (tid < kHeadDim)
    static_cast<bf16_t*>(p.out.data)[t * p.out.stride + blockIdx.x % p.heads * kHeadDim + tid] =
        f32_to_bf16(state / sum);
  if (blockIdx.x % p.heads == 0) clear_padding(p, t, tid, kMergeThreads);
}

}  // namespace invar::cuda
