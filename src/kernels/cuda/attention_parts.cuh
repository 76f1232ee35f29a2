// What the pieces of a row (attention_single.cu) leave for whoever merges them.
#pragma once

#include "kernels/attention_cuts.h"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

// How far a row's unit is: splits that are computed, in the lower half, and in the upper half the
// leading ones that are merged, the result of which lies where the last of them would.
struct Progress {
  unsigned long long bits;

  __device__ static Progress of(int computed, int merged) {
    return {static_cast<unsigned long long>(merged) << 32 | static_cast<unsigned>(computed)};
  }
  __device__ int computed() const { return static_cast<int>(bits & 0xffffffff); }
  __device__ int merged() const { return static_cast<int>(bits >> 32); }
};

// Where they lie: [row][head][split of the row], rows of as many splits as they have.
struct Parts {
  static constexpr int64_t kMostUnits = 1 << 15;

  Progress* progress;  // [unit]; zero between calls
  float* out;          // [.][E]
  float2* sums;        // m and l, or M and L
  // For so many splits of heads; behind them what rows and heads begin with whose prefix is shared.
  int64_t room;

  __device__ int64_t state_at(const AttentionParams& p, int64_t t, int head) const {
    return room + t * p.heads + head;
  }
  __host__ __device__ bool has_room(const AttentionParams& p, const AttentionCuts& cuts) const {
    return int64_t{cuts.splits} * p.heads <= room && int64_t{cuts.rows} * cuts.units <= kMostUnits;
  }
};

inline Parts parts_in(const AttentionParams& p, void* scratch) {
  constexpr size_t kProgressBytes = Parts::kMostUnits * sizeof(Progress);
  if (!scratch) return {};
  Parts parts;
  parts.progress = static_cast<Progress*>(scratch);
  parts.sums = reinterpret_cast<float2*>(parts.progress + Parts::kMostUnits);
  const int64_t bytes = p.kv.head_dim * sizeof(float) + sizeof(float2),
                all = (kAttentionScratch - kProgressBytes) / bytes & ~1;  // whole 16 bytes
  parts.out = reinterpret_cast<float*>(parts.sums + all);
  parts.room = all - (p.num_shared > 0 ? p.rows * p.heads : 0);
  return parts;
}

__device__ __forceinline__ Progress progress_of(const Parts& parts, int unit) {
  Progress progress;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];"
               : "=l"(progress.bits)
               : "l"(&parts.progress[unit].bits)
               : "memory");
  return progress;
}
// By one thread, after a barrier of all whose stores it announces; how far it is with them.
__device__ __forceinline__ Progress add_progress(const Parts& parts, int unit, Progress more) {
  unsigned long long before;
  asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(&parts.progress[unit].bits), "l"(more.bits)
               : "memory");
  return {before + more.bits};
}

// M and the factors of what there is and of the split (numerics 4, step 4), from M = -inf on.
__device__ __forceinline__ void join(float& max, float split_max, float& a, float& b) {
  const float e = exp2_below_128(-fabsf(max - split_max));
  a = split_max > max ? e : 1.0f;
  b = split_max > max ? 1.0f : e;
  max = fmaxf(max, split_max);
}

// A warp's share of a block's shared memory, for slices of splits that wait to be merged.
struct MergeRing {
  static constexpr int kSplits = 16, kMostSlots = 4;  // of a slice; slices

  unsigned char* memory;
  uint32_t full;  // a barrier for each slot
  int slots, turn = 0;
};

// Merges `count` splits of one head from `at` on, the first of which may be several merged ones, by
// a whole warp, and the head's sink. The factors of 32 splits come from a running maximum, all at
// the same time.
template <int kHeadDim>
__device__ void merge_by_warp(const Parts& parts, int64_t at, int count, bf16_t* to,
                              MergeRing& ring, const float* sinks, int head) {
  constexpr int kFours = (kHeadDim + 127) / 128, kSplits = MergeRing::kSplits,
                kBytes = kSplits * kHeadDim * 4;
  const int lane = threadIdx.x % kWarp, slices = (count + kSplits - 1) / kSplits;
  const auto fetch = [&](int slice) {
    if (lane > 0 || slice >= slices) return;
    const int slot = (ring.turn + slice) % ring.slots;
    const uint32_t bytes = min(kSplits, count - slice * kSplits) * kHeadDim * 4;
    barrier_expect(ring.full + 8 * slot, bytes);
    load_bytes(shared_address(ring.memory) + slot * kBytes,
               parts.out + (at + slice * kSplits) * kHeadDim, bytes, ring.full + 8 * slot);
  };
  const auto sums_at = [&](int first) {
    return first + lane < count ? __ldcg(parts.sums + at + first + lane)
                                : float2{kMinusInfinity, 0.0f};
  };
  asm volatile("fence.proxy.async;" ::: "memory");  // other blocks' stores, before copies
  for (int slice = 0; slice < ring.slots; ++slice) fetch(slice);

  float4 state[kFours];
  float max = kMinusInfinity, sum = 0.0f, a = 0.0f, b = 0.0f, l = 0.0f;
  float2 mine = sums_at(0);
  for (int slice = 0; slice < slices; ++slice) {
    if (slice % 2 == 0) {
      const float2 own = mine;
      mine = sums_at((slice + 2) * kSplits);
      float top = own.x;  // of this and all earlier ones
#pragma unroll
      for (int apart = 1; apart < kWarp; apart *= 2) {
        const float other = __shfl_up_sync(kAllLanes, top, apart);
        if (lane >= apart) top = fmaxf(top, other);
      }
      float before = __shfl_up_sync(kAllLanes, top, 1);
      before = lane == 0 ? max : fmaxf(before, max);
      max = fmaxf(max, __shfl_sync(kAllLanes, top, kWarp - 1));
      join(before, own.x, a, b);
      l = own.y * b;
    }
    const int turn = ring.turn + slice, slot = turn % ring.slots, wanted = count - slice * kSplits;
    barrier_wait(ring.full + 8 * slot, turn / ring.slots & 1);
    const auto* const slots = reinterpret_cast<const float4*>(ring.memory + slot * kBytes);
    const auto join_split = [&](int i) {
      const int from = slice % 2 * kSplits + i;
      const float of_state = __shfl_sync(kAllLanes, a, from),
                  of_split = __shfl_sync(kAllLanes, b, from),
                  of_sum = __shfl_sync(kAllLanes, l, from);
      const bool is_first = i == 0 && slice == 0;
      sum = is_first ? of_sum : __fmaf_rn(sum, of_state, of_sum);
#pragma unroll
      for (int j = 0; j < kFours; ++j) {
        const float4 o = slots[i * (kHeadDim / 4) + min(j * kWarp + lane, kHeadDim / 4 - 1)];
        float4& s = state[j];
        s.x = is_first ? o.x : __fmaf_rn(s.x, of_state, __fmaf_rn(o.x, of_split, 0.0f));
        s.y = is_first ? o.y : __fmaf_rn(s.y, of_state, __fmaf_rn(o.y, of_split, 0.0f));
        s.z = is_first ? o.z : __fmaf_rn(s.z, of_state, __fmaf_rn(o.z, of_split, 0.0f));
        s.w = is_first ? o.w : __fmaf_rn(s.w, of_state, __fmaf_rn(o.w, of_split, 0.0f));
      }
    };
    if (wanted >= kSplits) {
#pragma unroll
      for (int i = 0; i < kSplits; ++i) join_split(i);
    } else {
#pragma unroll 1
      for (int i = 0; i < wanted; ++i) join_split(i);
    }
    __syncwarp();
    fetch(slice + ring.slots);
  }
  ring.turn += slices;
  if (sinks) {
    const float factor = join_sink(sinks, head, max, sum);
#pragma unroll
    for (float4& s : state)
      s = {__fmaf_rn(s.x, factor, 0.0f), __fmaf_rn(s.y, factor, 0.0f), __fmaf_rn(s.z, factor, 0.0f),
           __fmaf_rn(s.w, factor, 0.0f)};
  }
#pragma unroll
  for (int j = 0; j < kFours; ++j) {
    const int e = (j * kWarp + lane) * 4;
    if (e < kHeadDim)
      *reinterpret_cast<uint2*>(to + e) = {pack_any_bf16(state[j].x / sum, state[j].y / sum),
                                           pack_any_bf16(state[j].z / sum, state[j].w / sum)};
  }
}

}  // namespace invar::cuda
