// Attention of single rows beside attending itself (attention_single.cuh): fetching keys and
// values, rotating queries, keeping a new key and value, merging what is left to a block.
#pragma once

#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_pieces.cuh"
#include "kernels/cuda/attention_readers.cuh"
#include "kernels/cuda/rotation.cuh"

namespace invar::cuda::single {

constexpr int kThreads = 160, kWorkers = 128, kFewestStages = 2;

template <typename Rows>
struct Shape {
  static constexpr int kHeadDim = Rows::kHeadDim, kTiles = Rows::kTiles;
  static constexpr int kStageBytes = Rows::kStageBytes, kScaleBytes = Rows::kScaleBytes;
  // Behind the stages: their scales, queries, two buffers of probabilities, of maxima and of sums,
  // a new key and a new value, what one thread tells the others, barriers.
  static constexpr int kQueryBytes = kTiles * kQueries * 128, kWeightBytes = 2 * kQueries * 128,
                       kMaxBytes = 4 * kQueries * 4, kSumBytes = 64 * kQueries * 4;
  static constexpr int kWeightsAt = kQueryBytes, kMaxAt = kWeightsAt + 2 * kWeightBytes,
                       kSumsAt = kMaxAt + 2 * kMaxBytes, kNewestAt = kSumsAt + 2 * kSumBytes,
                       kTellAt = kNewestAt + 2 * kHeadDim * 2, kBarsAt = kTellAt + 16;
  static constexpr int kMergeBars = kWorkers / kWarp * MergeRing::kMostSlots;
  static constexpr int rest_at(int stages) { return stages * (kStageBytes + kScaleBytes); }
  static constexpr int bytes(int stages) {
    return rest_at(stages) + stages * 16 + kBarsAt + 8 * kMergeBars;
  }
};

// Any argument: exp2's ends, and NaN stays what it is.
__device__ __forceinline__ float exp2_any(float t) {
  const float value = exp2_below_128(t);
  return t >= 128.0f ? std::numeric_limits<float>::infinity() : value;
}

// By a whole warp: its lanes read the numbers of 32 blocks at a time, and those after them while
// they are fetched. Splits that are older than the step are fetched before the kernels before this
// one are done: a sequence's rows of a step have consecutive positions, so that none of them wrote
// `rows` or more slots before this row's.
template <typename Rows>
__device__ void fetch(const AttentionParams& p, const CUtensorMap& keys, const CUtensorMap& values,
                      Ring& ring, uint32_t base, int group, const Piece& piece) {
  using S = Shape<Rows>;
  const int lane = threadIdx.x % kWarp;
  const int64_t t = piece.t;
  const int begin = piece.splits.first + piece.begin, end = piece.splits.first + piece.end;
  const int32_t* blocks = p.tables[p.table_of[t]];
  const int slots = p.kv.block_size, per_split = kSplitSlots / slots;
  const int first_page = first_slot(p, t) / slots, last_page = p.positions[t] / slots;
  const auto number = [&](int page) { return blocks[min(max(page, first_page), last_page)]; };
  int now = 0, next = number(begin * per_split + lane);
  // The kernel before has written all slots of what is made bf16 of a cache in 8 bits.
  const int64_t old_slots = p.kv.stored.data && !Rows::kIsStored ? 0 : p.positions[t] - p.rows + 1;
  bool is_early = true;
  for (int split = begin; split < end; ++split) {
    const int at = (split - begin) * per_split % kWarp;
    if (at == 0) {
      now = next;
      next = number(split * per_split + kWarp + lane);
    }
#pragma unroll
    for (int which = 0; which < 2; ++which, ring.next()) {
      const uint32_t to = base + ring.stage * S::kStageBytes,
                     scales = base + ring.stages * S::kStageBytes + ring.stage * S::kScaleBytes;
      if (is_early && (int64_t{split + 1} * kSplitSlots > old_slots ||
                       2 * (split - begin) + which >= ring.stages)) {
        wait_for_kernels_before();
        is_early = false;
      }
      barrier_wait(ring.empty_now(), ring.parity ^ 1);
      if (lane == 0) barrier_expect(ring.full_now(), S::kStageBytes + S::kScaleBytes);
      for (int j = 0; j < per_split; ++j) {
        const int block = __shfl_sync(kAllLanes, now, at + j);
        if (lane == 0)
          Rows::fetch(p.kv, which ? values : keys, block, which, group, to + j * slots * 128,
                      scales + j * slots * static_cast<int>(sizeof(float)), ring.full_now());
      }
    }
  }
}

// The rotated queries `head` to `head` + `heads` of row t, and with `newest` its key and value, by
// kWorkers threads.
template <int kHeadDim>
__device__ void rotate(const QkvParams& p, int64_t t, int head, int heads, int group,
                       unsigned char* queries, bf16_t* newest) {
  using Pairs = HeadPairs<kHeadDim == 128 ? 128 : 0>;
  constexpr int kHalf = kHeadDim / 2, kWarps = kWorkers / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float* row = p.qkv + t * p.qkv_stride;
  // The last warp takes the key, the one before it the value.
  const bool is_key = warp == kWarps - 1, has_other = newest && warp >= kWarps - 2;
  const float* in = row + (p.heads + (is_key ? 0 : p.kv.kv_heads) + group) * int64_t{kHeadDim};
  Pairs query(p, t, p.q_norm, lane), other(p, t, p.k_norm, lane);
  wait_for_kernels_before();
  if (has_other) other.load(p, in, lane);
  for (int q = warp; q < heads; q += kWarps) {
    const float* of_query = row + int64_t{head + q} * kHeadDim;
    query.load(p, of_query, lane);
    query.rotate(p, of_query, p.q_norm, lane);
#pragma unroll
    for (int j = 0; j < Pairs::kMost; ++j) {
      const int i = lane + j * kWarp;
      if (!Pairs::has(i, kHalf)) continue;
      *reinterpret_cast<bf16_t*>(queries + query_at(q, i)) = f32_to_bf16(query.low[j]);
      *reinterpret_cast<bf16_t*>(queries + query_at(q, i + kHalf)) = f32_to_bf16(query.high[j]);
    }
  }
  if (!has_other) return;
  if (is_key) other.rotate(p, in, p.k_norm, lane);
  bf16_t* const to = newest + (is_key ? 0 : kHeadDim);
  bool is_odd = false;
#pragma unroll
  for (int j = 0; j < Pairs::kMost; ++j) {
    const int i = lane + j * kWarp;
    if (!Pairs::has(i, kHalf)) continue;
    is_odd = is_odd || !is_finite(other.low[j]) || !is_finite(other.high[j]);
    to[i] = f32_to_cached_bf16(other.low[j]);
    to[i + kHalf] = f32_to_cached_bf16(other.high[j]);
  }
  if (is_odd) p.non_finite[t] = true;
}

// The key and the value of row t to where the cache keeps them, by kWorkers threads.
template <int kHeadDim>
__device__ void keep(const QkvParams& p, int64_t t, int group, const bf16_t* newest) {
  constexpr int kPieces = kHeadDim / 8;
  const int tid = threadIdx.x;
  if (tid >= 2 * kPieces) return;
  bf16_t* const cache = tid < kPieces ? p.kv.keys : p.kv.values;
  for (int w = p.write_begin[t]; w < p.write_begin[t + 1]; ++w) {
    bf16_t* const slot = cache + p.kv.row_index(p.write_block[w], group, p.write_slot[w], 0);
    reinterpret_cast<uint4*>(slot)[tid % kPieces] = reinterpret_cast<const uint4*>(newest)[tid];
  }
}

// Merges what pieces left to this block; a warp has a head. The stages are free by then.
template <int kHeadDim>
__device__ __forceinline__ void merge_piece(const AttentionParams& p, const SingleWork& work,
                                            const Piece& piece, int merged, MergeRing& ring) {
  const int per_group = p.heads / p.kv.kv_heads, block = piece.of_row % work.query_blocks,
            first = piece.of_row / work.query_blocks * per_group + block * kQueries,
            heads = min(kQueries, per_group - block * kQueries), splits = piece.splits.count;
  bf16_t* const to = static_cast<bf16_t*>(p.out.data) + piece.t * p.out.stride;
  for (int head = first + threadIdx.x / kWarp; head < first + heads; head += kWorkers / kWarp)
    merge_by_warp<kHeadDim>(
        work.parts, int64_t{piece.before} * p.heads + int64_t{head} * splits + merged - 1,
        splits - merged + 1, to + int64_t{head} * kHeadDim, ring, p.sinks, head);
  if (piece.of_row == 0) clear_padding(p, piece.t, threadIdx.x, kWorkers);
}

}  // namespace invar::cuda::single
