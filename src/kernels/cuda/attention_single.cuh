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

#include "kernels/cuda/attention_single_rows.cuh"

namespace invar::cuda::single {

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

}  // namespace invar::cuda::single
