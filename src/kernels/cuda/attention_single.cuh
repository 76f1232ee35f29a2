// Attention of single rows: decoding (order `hopper`, numerics 4).
//
// A block takes pieces in turn: some splits of one row and up to 8 query heads of one key/value
// head (attention_pieces.cuh). Keys are the 64-row side of the tensor-core instruction, queries its
// 8 columns; then values, transposed, and probabilities. A block merges the splits of a row's first
// piece as they come, and those of a later one where all before it are merged; other splits'
// results go to the scratch memory. Whoever ends a row's last piece merges those. With few rows, of
// which many blocks have a piece, another kernel does.
//
// Where a row's own key and value are the only ones that are not in the cache before, the rotation
// (rotation.cu) is done here: every block rotates its queries, that with the newest slot also the
// key, and puts key and value over what came from the cache for that slot.
//
// `Rows` (attention_readers.cuh) is how keys and values lie in the cache.
#pragma once

#include <algorithm>

#include "base/check.h"
#include "kernels/at_once.h"
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
  // Of what is made bf16 of a cache in 8 bits the kernel before has written all slots.
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

// One piece, by the threads that do not fetch. Where its row's other pieces are done, and not
// merged with it, returns how many of the row's splits are merged: the rest is left to this block.
template <typename Rows, Merging kMerging>
__device__ __forceinline__ int attend_piece(const AttentionParams& p, const QkvParams& rotation,
                                            const SingleWork& work, bool may_cut,
                                            unsigned char* shared, Ring& ring, const Piece& piece) {
  using S = Shape<Rows>;
  constexpr int kHeadDim = S::kHeadDim;
  constexpr bool kApart = kMerging == Merging::apart, kTogether = kMerging == Merging::together;
  const uint32_t base = shared_address(shared);
  unsigned char* const rest = shared + S::rest_at(work.stages);
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  const int block = piece.of_row % work.query_blocks, group = piece.of_row / work.query_blocks;
  const int64_t t = piece.t;
  const int per_group = p.heads / p.kv.kv_heads;
  const int head = group * per_group + block * kQueries,
            heads = min(kQueries, per_group - block * kQueries);
  const Splits splits = piece.splits;
  const int begin = splits.first + piece.begin, end = splits.first + piece.end;
  const bool is_alone = kApart ? !may_cut : !kTogether || piece.is_whole();

  const bool rotates = !Rows::kIsStored && rotation.qkv;
  const bool has_newest = rotates && end == splits.first + splits.count;
  bf16_t* const newest = reinterpret_cast<bf16_t*>(rest + S::kNewestAt);
  const int padded = static_cast<int>(round_up(kHeadDim, 32));
  const auto put_queries = [&](auto value_of) {
    for (int i = tid; i < kQueries * S::kTiles * 8; i += kWorkers) {
      const int q = i / (S::kTiles * 8), e = i % (S::kTiles * 8) * 8;
      *reinterpret_cast<uint4*>(rest + query_at(q, e)) = value_of(q, e);
    }
  };
  if (rotates) {
    put_queries([](int, int) { return uint4{0, 0, 0, 0}; });
    named_sync(1, kWorkers);
    if constexpr (!Rows::kIsStored)
      rotate<kHeadDim>(rotation, t, head, heads, group, rest, has_newest ? newest : nullptr);
  } else {
    wait_for_kernels_before();
    put_queries([&](int q, int e) {
      return q < heads && e < padded
                 ? *reinterpret_cast<const uint4*>(p.q + (t * p.heads + head + q) * padded + e)
                 : uint4{0, 0, 0, 0};
    });
  }
  volatile int* const tell = reinterpret_cast<int*>(rest + S::kTellAt);
  const bool may_continue = kTogether && piece.begin > 0;
  if (may_continue && tid == 0) tell[0] = progress_of(work.parts, piece.unit).merged();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  named_sync(1, kWorkers);
  const bool continues = may_continue && tell[0] == piece.begin;
  const bool merges =
      is_alone || (kApart && work.by_count) || continues || (kTogether && piece.begin == 0);

  // Lane l of warp w has queries l % 4 * 2 and the next; of slots (and of head elements) 16w + l /
  // 4 and that + 8 of every 64.
  const int query = lane % 4 * 2, slot = warp * 16 + lane / 4;
  const int first = first_slot(p, t), last = p.positions[t];
  const typename Rows::Queries queries(shared_address(rest));
  float out[S::kTiles][4] = {};
  float max[2] = {kMinusInfinity, kMinusInfinity}, sum[2] = {};
  const auto release = [&] {
    if constexpr (Rows::kIsStored) __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty_now());
    ring.next();
  };
  // The row's own key or value, over what the cache had in its slot.
  const auto put_newest = [&](int split, const bf16_t* row) {
    if (!has_newest || split != end - 1) return;
    const int at = last % kSplitSlots;
    if (tid < kHeadDim / 8)
      *reinterpret_cast<uint4*>(shared + ring.stage * S::kStageBytes + tid / 8 * kSplitBoxBytes +
                                at * 128 + (tid % 8 ^ at % 8) * 16) =
          reinterpret_cast<const uint4*>(row)[tid];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    named_sync(1, kWorkers);
  };
  // Where the results of a split, or the merged ones up to it, wait.
  const auto part_at = [&](int of_query, int number) {
    return int64_t{piece.before} * p.heads + int64_t{head + of_query} * splits.count + number;
  };
  const auto write_part = [&](int number, const float(&values)[S::kTiles][4], const float(&tops)[2],
                              const float(&totals)[2]) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      if (query + b >= heads) continue;
      const int64_t at = part_at(query + b, number);
#pragma unroll
      for (int c = 0; c < S::kTiles; ++c)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int e = Rows::element(c, r);
          if (e < kHeadDim) work.parts.out[at * kHeadDim + e] = values[c][2 * r + b];
        }
      if (tid < 4) work.parts.sums[at] = {tops[b], totals[b]};
    }
  };
  // What the row begins with where its first splits were computed with other rows'.
  const bool has_prefix = p.num_shared > 0 && splits.first > 0 && piece.begin == 0;
  if (continues || has_prefix)
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      if (query + b >= heads) continue;
      const int64_t at = has_prefix ? work.parts.state_at(p, t, head + query + b)
                                    : part_at(query + b, piece.begin - 1);
      const float2 state = __ldcg(work.parts.sums + at);
      max[b] = state.x;
      sum[b] = state.y;
#pragma unroll
      for (int c = 0; c < S::kTiles; ++c)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int e = Rows::element(c, r);
          if (e < kHeadDim) out[c][2 * r + b] = __ldcg(work.parts.out + at * kHeadDim + e);
        }
    }
  const auto scales_now = [&] {
    return reinterpret_cast<const float*>(shared + work.stages * S::kStageBytes +
                                          ring.stage * S::kScaleBytes);
  };
  for (int split = begin; split < end; ++split) {
    const int buffer = split % 2;
    unsigned char* const weights = rest + S::kWeightsAt + buffer * S::kWeightBytes;
    float* const maxima = reinterpret_cast<float*>(rest + S::kMaxAt + buffer * S::kMaxBytes);
    float* const sums = reinterpret_cast<float*>(rest + S::kSumsAt + buffer * S::kSumBytes);
    float s[2][4];
    barrier_wait(ring.full_now(), ring.parity);
    put_newest(split, newest);
    Rows::scores(s, base + ring.stage * S::kStageBytes, scales_now(), queries);
    release();

    if (work.scale.inner > 0) {
#pragma unroll
      for (int x = 0; x < 8; ++x) s[x / 4][x % 4] = capped(s[x / 4][x % 4] * work.scale.inner);
    }
    const int base_place = split * kSplitSlots + slot;
    float top[2] = {kMinusInfinity, kMinusInfinity};
    bool valid[2][2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = base_place + h * 64 + r * 8;
        valid[h][r] = at >= first && at <= last;
#pragma unroll
        for (int b = 0; b < 2; ++b)
          if (valid[h][r]) top[b] = fmaxf(top[b], s[h][2 * r + b]);
      }
#pragma unroll
    for (int apart = 4; apart < kWarp; apart *= 2)
#pragma unroll
      for (int b = 0; b < 2; ++b) top[b] = fmaxf(top[b], __shfl_xor_sync(kAllLanes, top[b], apart));
    if (lane < 4) *reinterpret_cast<float2*>(maxima + warp * kQueries + query) = {top[0], top[1]};
    named_sync(1, kWorkers);
    float split_max[2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int w = 0; w < 4; ++w) top[b] = fmaxf(top[b], maxima[w * kQueries + query + b]);
      split_max[b] = top[b] * work.scale.factor;
    }
    // Without branches, so that they are computed side by side.
    float e[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int x = 0; x < 4; ++x)
        e[h][x] = exp2_any(__fmaf_rn(s[h][x], work.scale.factor, -split_max[x % 2]));
    float lanes[2][2];  // of sum64: slot i adds i + 64
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = slot + r * 8;
        const float low = valid[h][r] ? e[h][2 * r] : 0.0f,
                    high = valid[h][r] ? e[h][2 * r + 1] : 0.0f;
        lanes[r][0] = h == 0 ? low : lanes[r][0] + low;
        lanes[r][1] = h == 0 ? high : lanes[r][1] + high;
        const uint32_t both = pack_bf16(low, high);  // none is subnormal
        unsigned char* const to = weights + h * (kQueries * 128) + at % 8 * 2;
        *reinterpret_cast<bf16_t*>(to + query * 128 + (at / 8 ^ query) * 16) =
            static_cast<bf16_t>(both);
        *reinterpret_cast<bf16_t*>(to + (query + 1) * 128 + (at / 8 ^ (query + 1)) * 16) =
            static_cast<bf16_t>(both >> 16);
      }
#pragma unroll
    for (int r = 0; r < 2; ++r)
      *reinterpret_cast<float2*>(sums + (slot + r * 8) * kQueries + query) = {lanes[r][0],
                                                                              lanes[r][1]};
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    named_sync(1, kWorkers);

    float part[S::kTiles][4];
    barrier_wait(ring.full_now(), ring.parity);
    put_newest(split, newest + kHeadDim);
    Rows::outputs(part, base + ring.stage * S::kStageBytes, scales_now(), shared_address(weights));
    float split_sum[2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      float e[8];
#pragma unroll
      for (int x = 0; x < 8; ++x) e[x] = sums[(x * 8 + lane / 4) * kQueries + query + b];
#pragma unroll
      for (int apart = 4; apart >= 1; apart /= 2)
#pragma unroll
        for (int x = 0; x < apart; ++x) e[x] = e[x] + e[x + apart];
      split_sum[b] = e[0];
#pragma unroll
      for (int apart = 16; apart >= 4; apart /= 2)
        split_sum[b] = split_sum[b] + __shfl_xor_sync(kAllLanes, split_sum[b], apart);
    }
    Rows::outputs_are_there();
    release();

    if (merges) {
      float a[2], b[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        join(max[i], split_max[i], a[i], b[i]);
        sum[i] = __fmaf_rn(sum[i], a[i], split_sum[i] * b[i]);
      }
#pragma unroll
      for (int c = 0; c < S::kTiles; ++c)
#pragma unroll
        for (int x = 0; x < 4; ++x)
          out[c][x] = __fmaf_rn(out[c][x], a[x % 2], __fmaf_rn(part[c][x], b[x % 2], 0.0f));
    } else if constexpr (kMerging != Merging::none) {
#pragma unroll
      for (int c = 0; c < S::kTiles; ++c)
#pragma unroll
        for (int x = 0; x < 4; ++x) part[c][x] = part[c][x] + 0.0f;
      write_part(split - splits.first, part, split_max, split_sum);
    }
  }
  const bool is_last = piece.end == splits.count;
  if constexpr (!Rows::kIsStored)
    if (has_newest && block == 0) keep<kHeadDim>(rotation, t, group, newest);
  if (kApart && !is_alone) {
    if (work.by_count) write_part(piece.chunk, out, max, sum);
    return 0;
  }
  if (is_alone || (continues && is_last)) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      if (query + b >= heads) continue;
      if (p.sinks) {
        const float factor = join_sink(p.sinks, head + query + b, max[b], sum[b]);
#pragma unroll
        for (int c = 0; c < S::kTiles; ++c)
#pragma unroll
          for (int r = 0; r < 2; ++r)
            out[c][2 * r + b] = __fmaf_rn(out[c][2 * r + b], factor, 0.0f);
      }
      bf16_t* const to = static_cast<bf16_t*>(p.out.data) + t * p.out.stride +
                         int64_t{head + query + b} * kHeadDim;
#pragma unroll
      for (int c = 0; c < S::kTiles; ++c)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int e = Rows::element(c, r);
          if (e < kHeadDim) to[e] = f32_to_bf16(out[c][2 * r + b] / sum[b]);
        }
    }
    if (piece.of_row == 0) clear_padding(p, t, tid, kWorkers);
    if (continues && tid == 0) work.parts.progress[piece.unit] = {0};
    return 0;
  }
  if constexpr (kTogether) {
    if (merges) write_part(piece.end - 1, out, max, sum);
    named_sync(1, kWorkers);
    if (tid == 0) {
      const int count = piece.end - piece.begin;
      const Progress all =
          add_progress(work.parts, piece.unit, Progress::of(count, merges ? count : 0));
      const bool is_done = all.computed() == splits.count;
      if (is_done) work.parts.progress[piece.unit] = {0};
      tell[1] = is_done ? all.merged() : 0;
    }
    named_sync(1, kWorkers);
    return tell[1];
  }
  return 0;
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

// The pieces of a block, by the threads that do not fetch, and what they leave to it.
template <typename Rows, typename Pieces>
__device__ __forceinline__ void attend_pieces(const AttentionParams& p, const QkvParams& rotation,
                                              const SingleWork& work, const AttentionCuts& cuts,
                                              unsigned char* shared, Ring& ring) {
  using S = Shape<Rows>;
  constexpr int kHeadDim = S::kHeadDim;
  int merged[2] = {};  // of the two pieces that may be those of others' rows, too
  bool is_second = false;
  Pieces pieces(p, work, cuts, static_cast<int>(blockIdx.x));
  for (Piece piece; pieces.next(piece);) {
    const int left =
        attend_piece<Rows, Pieces::kMerging>(p, rotation, work, cuts.may_cut, shared, ring, piece);
    if (Pieces::kMerging != Merging::together || piece.is_whole()) continue;
    (is_second ? merged[1] : merged[0]) = left;
    is_second = true;
  }
  if (Pieces::kMerging != Merging::together || merged[0] + merged[1] == 0) return;
  named_sync(1, kWorkers);  // the stages have been read
  constexpr int kSliceBytes = MergeRing::kSplits * kHeadDim * 4, kWarps = kWorkers / kWarp;
  static_assert(kSliceBytes * kWarps <= kFewestStages * S::kStageBytes);
  const int warp = threadIdx.x / kWarp,
            slots =
                min(work.stages * S::kStageBytes / (kSliceBytes * kWarps), MergeRing::kMostSlots),
            bytes = slots * kSliceBytes;
  MergeRing merge_ring{shared + warp * bytes,
                       ring.empty + 8 * work.stages + 8 * MergeRing::kMostSlots * warp, slots};
  Pieces again(p, work, cuts, static_cast<int>(blockIdx.x));
  for (Piece piece; again.next(piece);) {
    if (piece.is_whole()) continue;
    if (merged[0] > 0) merge_piece<kHeadDim>(p, work, piece, merged[0], merge_ring);
    merged[0] = merged[1];
    merged[1] = 0;
  }
}

template <typename Rows, typename Pieces>
__device__ __forceinline__ void attend_block(const CUtensorMap& keys, const CUtensorMap& values,
                                             const AttentionParams& p, const QkvParams& rotation,
                                             const SingleWork& work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using S = Shape<Rows>;
  const uint32_t base = shared_address(shared), bars = base + S::rest_at(work.stages) + S::kBarsAt;
  Ring ring{bars, bars + 8 * work.stages, work.stages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kMergeBars; ++i) barrier_init(bars + 16 * work.stages + 8 * i, 1);
    ring.init(4);
  }
  __syncthreads();
  let_next_kernel_start();
  const AttentionCuts cuts = Pieces::cuts_of(p, work);
  if (cuts.rows == 0) {
  } else if (threadIdx.x < kWorkers) {
    attend_pieces<Rows, Pieces>(p, rotation, work, cuts, shared, ring);
  } else {
    Pieces pieces(p, work, cuts, static_cast<int>(blockIdx.x));
    for (Piece piece; pieces.next(piece);)
      fetch<Rows>(p, keys, values, ring, base, piece.of_row / work.query_blocks, piece);
  }
  // A block without a piece leaves its room to what comes next; one waits for all of them.
  if (blockIdx.x == 0) wait_for_kernels_before();
}

template <typename Rows, typename Pieces>
__global__ __launch_bounds__(kThreads) void single_kernel(
    const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values,
    const AttentionParams p, const QkvParams rotation, const SingleWork work) {
  attend_block<Rows, Pieces>(keys, values, p, rotation, work);
}
// They make bf16 of what is stored in registers, and leave enough for three of them.
template <typename Rows, typename Pieces>
__global__ __launch_bounds__(kThreads, 3) void stored_kernel(
    const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values,
    const AttentionParams p, const QkvParams rotation, const SingleWork work) {
  attend_block<Rows, Pieces>(keys, values, p, rotation, work);
}

inline int64_t units_of(const AttentionParams& p) {
  const int per_group = p.heads / p.kv.kv_heads;
  return p.rows * p.kv.kv_heads * ((per_group + kQueries - 1) / kQueries);
}
// Few rows of short contexts may go together: rotated, in pieces of some splits, and merged by
// whoever ends a row's last piece, they are one kernel instead of three that wait for each other.
constexpr int kFewUnits = 32, kShortPieces = 16;
inline bool may_be_short(const AttentionParams& p) {
  return p.scratch && p.num_shared == 0 && units_of(p) <= kFewUnits && !may_have_many_rows(p);
}
// One block a row and head keeps all multiprocessors busy from so many on.
inline bool has_many_units(const AttentionParams& p, const Execution& on) {
  return units_of(p) >= int64_t{gpu_of(on).multiprocessors()} * 9 / 10;
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, AttentionParams, QkvParams, SingleWork);
template <typename Rows, typename Pieces>
constexpr Kernel kernel_of() {
  if constexpr (Rows::kIsStored)
    return stored_kernel<Rows, Pieces>;
  else
    return single_kernel<Rows, Pieces>;
}

struct SinglePlan {
  SingleWork work;
  Kernel kernel;
  bool merges_apart;
};

// Whether units of rows of about the same length fill `workers` turn by turn.
inline bool fills_turns(int64_t units, int workers) {
  const int64_t turns = (units + workers - 1) / workers;
  return units * 10 >= turns * workers * 9 || turns > 10;
}

// How the rows are shared out. With few units three blocks of two stages share a multiprocessor,
// with some more one block has it to itself, and then two; or three where what is stored is made
// bf16, which takes more warps than waiting for it does, and whole rows fill them.
template <typename Rows>
SinglePlan plan_single(const AttentionParams& p, const Execution& on, bool by_count,
                       bool goes_together) {
  using S = Shape<Rows>;
  constexpr int kRoom = kMaxSharedBytes + (1 << 10), kOfBlock = 1 << 10;  // that each block takes
  const int per_group = p.heads / p.kv.kv_heads,
            query_blocks = (per_group + kQueries - 1) / kQueries;
  const int64_t units = units_of(p);
  const int multiprocessors = gpu_of(on).multiprocessors();
  const bool merges_apart =
                 !has_many_units(p, on) && p.scratch && p.num_shared == 0 && !goes_together,
             has_tiles = may_have_many_rows(p);
  const bool even = p.rows_are_even && !has_tiles,
             fill_three = Rows::kIsStored && even && fills_turns(units, 3 * multiprocessors);
  const int wanted = merges_apart || fill_three || goes_together ? 3
                     : units <= multiprocessors                  ? 1
                                                                 : 2;
  const int stages = std::clamp(
      (kRoom / wanted - kOfBlock - S::bytes(0)) / (S::bytes(1) - S::bytes(0)), kFewestStages, 6);
  const int blocks = goes_together ? static_cast<int>(units) * kShortPieces
                                   : kRoom / (S::bytes(stages) + kOfBlock) * multiprocessors;
  const int chunks = merges_apart ? static_cast<int>((3 * multiprocessors + units - 1) / units) : 1;
  // What pieces cost beside their splits, in splits, is measured (cuda_bench ragged).
  const SingleWork work = {.query_blocks = query_blocks,
                           .stages = stages,
                           .by_count = by_count,
                           .chunks = chunks,
                           .scale = score_scale(p),
                           .few_rows = has_tiles ? p.few_rows : nullptr,
                           .cuts = {.units = p.kv.kv_heads * query_blocks,
                                    .workers = blocks,
                                    .piece_cost = 1,
                                    .fewest = 2,
                                    .cut_cost = 5},
                           .parts = parts_in(p, p.scratch)};
  SinglePlan plan = {work, kernel_of<Rows, StretchPieces>(), merges_apart};
  if (by_count || (even && (merges_apart || fills_turns(units, blocks)))) {
    plan.kernel = merges_apart ? kernel_of<Rows, ChunkPieces>() : kernel_of<Rows, WholePieces>();
    plan.work.cuts.workers = static_cast<int>(units * chunks);
  } else if (merges_apart) {
    plan.kernel = kernel_of<Rows, OnePiece>();
  }
  return plan;
}

// `rotation` without a product: the queries are in p.q, keys and values in the cache.
template <typename Rows>
void attend(const AttentionParams& p, const QkvParams& rotation, const Execution& on, bool by_count,
            bool goes_together = false) {
  const auto [work, kernel, merges_apart] = plan_single<Rows>(p, on, by_count, goes_together);
  CHECK(work.few_rows || !may_have_many_rows(p), "attention is told which rows are single");
  launch("attending", kernel,
         {.blocks = work.cuts.workers,
          .threads = kThreads,
          .shared_bytes = Shape<Rows>::bytes(work.stages),
          .early = true},
         on, Rows::map(p.kv, p.kv.keys), Rows::map(p.kv, p.kv.values), p, rotation, work);
  if (merges_apart)
    launch("attending", merge_kernel<Rows::kHeadDim>,
           {.blocks = static_cast<int>(p.rows * p.heads),
            .threads = kMergeThreads,
            .shared_bytes = kMergeBytes<Rows::kHeadDim>,
            .early = true},
           on, p, work);
}

}  // namespace invar::cuda::single
