// The memory of a block of attention.cu and its two products, of scores and of weighted values, in
// each order.
#pragma once

#include <limits>

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/mma.cuh"

namespace invar::cuda {

namespace {

constexpr int kQueries = 8, kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kUsualHeadDim = 256, kLatentHeadDim = 576;  // the largest
constexpr int kMaxCluster = 8;
constexpr int kPad = 8;  // words after each row of shared memory, against bank conflicts

// A split does one of these to a query's state.
enum class Merge : int { skip, set, join };

template <int kMost>
struct Shared {
  static constexpr int kMaxHeadDim = kMost;
  uint32_t q[kQueries][kMaxHeadDim / 2 + kPad];        // pairs of bf16
  uint32_t weights[kQueries][kSplitSlots / 2 + kPad];  // bf16 probabilities by slot
  float scores[kQueries][kSplitSlots];
  int64_t row[kQueries];
  int head[kQueries];
  int64_t first[kQueries], last[kQueries];  // valid slots
  int64_t begin, end;                       // of all of them
  // The block's split: whether a query has a slot in it, m_s, l_s and o_s.
  bool has_slot[kQueries];
  float split_max[kQueries], split_sum[kQueries];
  float split_out[kQueries][kMaxHeadDim];
  // The state of the queries that the block owns, M and L, and what the splits of the cluster's
  // blocks do to it.
  bool is_set[kQueries];
  float max[kQueries], sum[kQueries];
  Merge merge[kQueries][kMaxCluster];
  float a[kQueries][kMaxCluster],
      b[kQueries][kMaxCluster];  // factors of the state and of the split
};

// The queries of one block and how to reach their cache.
struct Segment {
  int count;
  int group;  // key/value head
  const int32_t* table;
};

__device__ __forceinline__ const uint32_t* key_panel(const KvLayer& kv, const Segment& s,
                                                     int64_t slot) {
  const int64_t block = s.table[slot / kv.block_size];
  return reinterpret_cast<const uint32_t*>(kv.keys) +
         kv.key_index(block, s.group, slot % kv.block_size, 0) / 2;
}
__device__ __forceinline__ const uint32_t* value_panel(const KvLayer& kv, const Segment& s,
                                                       int64_t slot, int64_t e) {
  const int64_t block = s.table[slot / kv.block_size];
  return reinterpret_cast<const uint32_t*>(kv.values) +
         kv.value_index(block, s.group, slot % kv.block_size, e) / 2;
}

__device__ __forceinline__ float low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000);
}

// Operands of the tensor cores from a cache in rows, as load_outputs takes them from panels: 16
// slots with 16 head elements of step s as inner elements, and 16 head elements from e on with 16
// slots.
__device__ __forceinline__ const uint32_t* row_at(const KvLayer& kv, const bf16_t* data,
                                                  const Segment& s, int64_t slot) {
  const int64_t block = s.table[slot / kv.block_size];
  return reinterpret_cast<const uint32_t*>(data +
                                           kv.row_index(block, s.group, slot % kv.block_size, 0));
}
__device__ __forceinline__ StepOutputs load_keys(const KvLayer& kv, const Segment& s, int64_t slot,
                                                 int step, int lane) {
  const int word = step * 8 + lane % 4 * 2;
  uint2 pairs[2] = {};
  if (word * 2 < kv.row_elements())
    for (int i = 0; i < 2; ++i)
      pairs[i] = __ldg(
          reinterpret_cast<const uint2*>(row_at(kv, kv.keys, s, slot + lane / 4 * 2 + i) + word));
  return {{pairs[0].x, pairs[1].x, pairs[0].y, pairs[1].y}};
}
__device__ __forceinline__ StepOutputs load_values(const KvLayer& kv, const Segment& s,
                                                   int64_t slot, int64_t e, int lane) {
  const int64_t word = e / 2 + lane / 4;
  uint32_t at[4] = {};  // two neighbouring head elements of four neighbouring slots
  if (word * 2 < kv.row_elements())
    for (int i = 0; i < 4; ++i)
      at[i] = __ldg(row_at(kv, kv.values, s, slot + lane % 4 * 4 + i) + word);
  constexpr uint32_t kLow = 0x5410, kHigh = 0x7632;
  return {{__byte_perm(at[0], at[1], kLow), __byte_perm(at[0], at[1], kHigh),
           __byte_perm(at[2], at[3], kLow), __byte_perm(at[2], at[3], kHigh)}};
}

// The products of order `hopper`: warps take 16 slots, then 16 head elements.
struct TensorCores {
  template <typename Shared>
  __device__ static void scores(const KvLayer& kv, const Segment& s, int64_t base, Shared& shared) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int steps = static_cast<int>(round_up(kv.head_dim, 16)) / 16;
    for (int j = warp * 16; j < kSplitSlots; j += kWarps * 16) {
      if (base + j >= shared.end || base + j + 16 <= shared.begin) continue;
      float d[4] = {};
      for (int i = 0; i < steps; ++i)
        step(d, load_keys(kv, s, base + j, i, lane), load_row(shared.q[lane / 4], i, lane));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        shared.scores[lane % 4 * 2 + i % 2][j + lane / 4 * 2 + i / 2] = d[i] + 0.0f;
    }
  }

  template <typename Shared>
  __device__ static void outputs(const KvLayer& kv, const Segment& s, int64_t base,
                                 Shared& shared) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    for (int e = warp * 16; e < kv.head_dim; e += kWarps * 16) {
      float d[4] = {};
#pragma unroll
      for (int leaf = 0; leaf < kSplitSlots / 32; ++leaf) {
        const int64_t slot = base + leaf * 32;
        if (slot >= shared.end || slot + 32 <= shared.begin) continue;
#pragma unroll
        for (int i = 0; i < 2; ++i)
          step(d, load_values(kv, s, slot + i * 16, e, lane),
               load_row(shared.weights[lane / 4], leaf * 2 + i, lane));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        shared.split_out[lane % 4 * 2 + i % 2][e + lane / 4 * 2 + i / 2] = d[i] + 0.0f;
    }
  }
};

// The products of order `portable`: threads take slots, then head elements.
struct CudaCores {
  template <typename Shared>
  __device__ static void scores(const KvLayer& kv, const Segment& s, int64_t base, Shared& shared) {
    const int j = threadIdx.x;
    if (base + j >= shared.end || base + j < shared.begin) return;
    const uint32_t* panel = key_panel(kv, s, base + j / 16 * 16) + j % 16;
    float sum[kQueries] = {};
    for (int leaf = 0; leaf < round_up(kv.head_dim, 32) / 32; ++leaf) {
      float even[kQueries] = {}, odd[kQueries] = {};
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const uint32_t key = __ldg(panel + (leaf * 16 + i) * 16);
#pragma unroll
        for (int q = 0; q < kQueries; ++q) {
          const uint32_t pair = shared.q[q][leaf * 16 + i];
          even[q] = __fmaf_rn(low(pair), low(key), even[q]);
          odd[q] = __fmaf_rn(high(pair), high(key), odd[q]);
        }
      }
#pragma unroll
      for (int q = 0; q < kQueries; ++q) sum[q] = sum[q] + (even[q] + odd[q]);
    }
#pragma unroll
    for (int q = 0; q < kQueries; ++q) shared.scores[q][j] = sum[q] + 0.0f;
  }

  template <typename Shared>
  __device__ static void outputs(const KvLayer& kv, const Segment& s, int64_t base,
                                 Shared& shared) {
    for (int e = threadIdx.x; e < kv.head_dim; e += kThreads) {
      float sum[kQueries] = {};
      for (int leaf = 0; leaf < kSplitSlots / 32; ++leaf) {
        const int64_t slot = base + leaf * 32;
        if (slot >= shared.end || slot + 32 <= shared.begin) continue;
        const uint32_t* panel = value_panel(kv, s, slot, e / 16 * 16) + e % 16;
        float even[kQueries] = {}, odd[kQueries] = {};
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const uint32_t value = __ldg(panel + i * 16);
#pragma unroll
          for (int q = 0; q < kQueries; ++q) {
            const uint32_t pair = shared.weights[q][leaf * 16 + i];
            even[q] = __fmaf_rn(low(pair), low(value), even[q]);
            odd[q] = __fmaf_rn(high(pair), high(value), odd[q]);
          }
        }
#pragma unroll
        for (int q = 0; q < kQueries; ++q) sum[q] = sum[q] + (even[q] + odd[q]);
      }
#pragma unroll
      for (int q = 0; q < kQueries; ++q) shared.split_out[q][e] = sum[q] + 0.0f;
    }
  }
};

}  // namespace

}  // namespace invar::cuda
