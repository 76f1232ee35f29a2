// How the attention of single rows (attention_single.cuh) reads a split's keys and values: bf16 by
// the warpgroup's tensor-core instruction, from where TMA put them; what is stored in 8 bits
// (numerics 4.2) through registers, in which it becomes the bf16 that it stands for.
//
// Results lie alike: lane l of warp w has queries l % 4 * 2 and the next, and of scores slots
// 16w + l / 4 and that + 8 of every 64; of outputs, of every 64 head elements c, elements
// `element(c, 0)` and `element(c, 1)`.
#pragma once

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma_values.cuh"

namespace invar::cuda::single {

constexpr int kQueries = 8;
constexpr int kSplitBoxBytes = kSplitSlots * 128;  // of a split's slots, 128 bytes each

// Where element e of query q is, as TMA would put it: 8 rows of 128 bytes for every 64 elements,
// swizzled. Probabilities lie likewise, slots for elements.
__device__ __forceinline__ int query_at(int q, int e) {
  return e / 64 * (kQueries * 128) + q * 128 + (e / 8 % 8 ^ q) * 16 + e % 8 * 2;
}

template <int kDim>
struct CachedRows {
  static constexpr int kHeadDim = kDim, kTiles = (kHeadDim + 63) / 64,
                       kSteps = (kHeadDim + 15) / 16;
  static constexpr int kStageBytes = kTiles * kSplitBoxBytes, kScaleBytes = 0;
  static constexpr bool kIsStored = false;

  static CUtensorMap map(const KvLayer& kv, const bf16_t* data) { return cache_map(kv, data); }
  __device__ static void fetch(const KvLayer& kv, const CUtensorMap& map, int block, int, int group,
                               uint32_t to, uint32_t, uint32_t barrier) {
    for (int c = 0; c < kTiles; ++c)
      load_box(to + c * kSplitBoxBytes, map, c * 64, 0, block * kv.kv_heads + group, barrier);
  }

  struct Queries {
    uint64_t rows;
    __device__ explicit Queries(uint32_t address) : rows(describe_rows(address)) {}
  };

  __device__ static int element(int c, int r) {
    const int tid = static_cast<int>(threadIdx.x);
    return c * 64 + tid / kWarp * 16 + tid % kWarp / 4 + r * 8;
  }

  __device__ static void scores(float (&s)[2][4], uint32_t keys, const float*,
                                const Queries& queries) {
    steps_begin();
    const uint64_t rows = describe_rows(keys);
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        product_step<kQueries>(s[h], rows + h * 512 + k / 4 * (kSplitBoxBytes / 16) + k % 4 * 2,
                               queries.rows + k / 4 * 64 + k % 4 * 2, k != 0);
    steps_commit();
    steps_wait<0>();
  }

  // Under way until outputs_are_there().
  __device__ static void outputs(float (&out)[kTiles][4], uint32_t values, const float*,
                                 uint32_t weights) {
    steps_begin();
    const uint64_t rows = describe_rows(weights);
#pragma unroll
    for (int k = 0; k < kSplitSlots / 16; ++k)
#pragma unroll
      for (int c = 0; c < kTiles; ++c)
        transposed_step<kQueries>(out[c], describe_columns(values + c * kSplitBoxBytes + k * 2048),
                                  rows + k / 4 * 64 + k % 4 * 2, k != 0);
    steps_commit();
  }
  __device__ static void outputs_are_there() {
    steps_wait<0>();
  }
};

// Four 8 x 8 matrices of 16 bits from shared memory, rows of 16 bytes at the addresses of lanes 8m
// to 8m + 7: lane l gets, of row l / 4, elements l % 4 * 2 and the next. Or, transposed, of rows
// l % 4 * 2 and the next, element l / 4.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ uint32_t pack_finite_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Bytes i and j of a word of what is stored as a pair of the bf16 that they stand for.
template <CacheType kType>
struct Stored {
  uint32_t word;

  __device__ explicit Stored(uint32_t bytes) : word(bytes) {}
  // Of int8: byte q as 1.5 * 2^23 + q, less that. A dot of four bytes takes the pipe that
  // multiplies, and leaves the one that rounds to bf16 free.
  template <int kByte>
  __device__ float integer() const {
    return __int_as_float(__dp4a(static_cast<int>(word), 1 << 8 * kByte, 0x4B400000)) - 0x1.8p23f;
  }
  template <int kLow, int kHigh>
  __device__ uint32_t pair(float of_low, float of_high) const {
    if constexpr (kType == CacheType::int8) {
      return pack_finite_bf16(integer<kLow>() * of_low, integer<kHigh>() * of_high);
    } else {
      // As the high bytes of two halves; then exponent and significand where bf16 has them, which
      // is 2^-120 of the number. NaN is never stored.
      const uint32_t high = __byte_perm(word, 0, kHigh << 12 | 0x400 | kLow << 4 | 0x4);
      const uint32_t small = (high >> 4 & 0x07F007F0) | (high & 0x80008000);
      uint32_t pair;
      asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(small), "r"(0x7B807B80));
      return pair;
    }
  }
};

// A box has 128 bytes of every slot. A step's inner elements are in the order in which they lie,
// four of a lane, which no bit depends on (mma.cuh).
template <int kDim, CacheType kType>
struct StoredRows {
  static constexpr int kHeadDim = kDim, kTiles = kHeadDim / 64, kSteps = kHeadDim / 16;
  static constexpr int kBoxes = (kHeadDim + 127) / 128, kStageBytes = kBoxes * kSplitBoxBytes;
  static constexpr bool kHasScales = kType == CacheType::int8, kIsStored = true;
  static constexpr int kScaleBytes = kHasScales ? kSplitSlots * static_cast<int>(sizeof(float)) : 0;
  static_assert(kHeadDim % 64 == 0);

  // {pairs of bytes, slot, block and head}: pairs as if they were bf16.
  static CUtensorMap map(const KvLayer& kv, const bf16_t*) {
    constexpr uint64_t kAnyBlocks = uint64_t{1} << 31;
    const uint64_t row = static_cast<uint64_t>(kv.stored.row_bytes()),
                   head = static_cast<uint64_t>(kv.stored.head_bytes());
    return tensor_map<3>(kv.stored.data,
                         {.sizes = {row / 2, static_cast<uint64_t>(kv.block_size), kAnyBlocks},
                          .strides = {row, head},
                          .box = {64, static_cast<uint32_t>(kv.block_size), 1}});
  }
  __device__ static void fetch(const KvLayer& kv, const CUtensorMap& map, int block, int which,
                               int group, uint32_t to, uint32_t scales, uint32_t barrier) {
    const int head = (block * 2 + which) * kv.kv_heads + group;
    for (int c = 0; c < kBoxes; ++c)
      load_box(to + c * kSplitBoxBytes, map, c * 64, 0, head, barrier);
    if constexpr (kHasScales)
      load_bytes(
          scales,
          kv.stored.data + head * kv.stored.head_bytes() + kv.block_size * kv.stored.row_bytes(),
          kv.block_size * sizeof(float), barrier);
  }

  struct Queries {
    StepRows steps[kSteps];
    __device__ explicit Queries(uint32_t address) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(steps[k].b[0]), "=r"(steps[k].b[1])
                     : "r"(address + query_at(lane / 4, k * 16 + lane % 4 * 4))
                     : "memory");
    }
  };

  // Rows of outputs are head elements of a chunk of 16: a lane's are neighbours.
  __device__ static int element(int c, int r) {
    const int tid = static_cast<int>(threadIdx.x);
    return c * 64 + tid / kWarp * 16 + tid % kWarp / 4 * 2 + r;
  }

  // The 16-byte chunk of a slot's row.
  __device__ static uint32_t chunk_at(uint32_t stage, int slot, int chunk) {
    return stage + chunk / 8 * kSplitBoxBytes + slot * 128 + (chunk % 8 ^ slot % 8) * 16;
  }

  __device__ static void scores(float (&s)[2][4], uint32_t keys, const float* scales,
                                const Queries& queries) {
    const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int first = h * 64 + tid / kWarp * 16;
      const float low = kHasScales ? scales[first + lane / 4] : 0.0f,
                  high = kHasScales ? scales[first + lane / 4 + 8] : 0.0f;
#pragma unroll
      for (float& d : s[h]) d = 0.0f;
#pragma unroll
      for (int k = 0; k < kSteps; k += 2) {
        uint32_t words[4];  // of both halves of the slots, for two steps
        load_matrices(words, chunk_at(keys, first + lane % 16, k + lane / 16));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const Stored<kType> upper(words[2 * j]), lower(words[2 * j + 1]);
          step(s[h],
               {{upper.template pair<0, 1>(low, low), lower.template pair<0, 1>(high, high),
                 upper.template pair<2, 3>(low, low), lower.template pair<2, 3>(high, high)}},
               queries.steps[k + j]);
        }
      }
    }
  }

  __device__ static void outputs(float (&out)[kTiles][4], uint32_t values, const float* scales,
                                 uint32_t weights) {
    const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp, at = lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
      for (float& d : out[c]) d = 0.0f;
#pragma unroll
    for (int k = 0; k < kSplitSlots / 16; k += 2) {
      uint32_t rows[4];  // of probabilities, for two steps
      load_matrices(rows, weights + query_at(lane % 8, (k * 2 + lane / 8) * 8));
      float2 of[4] = {};  // scales of the lane's slots
      if constexpr (kHasScales)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          of[j] = *reinterpret_cast<const float2*>(scales + k * 16 + j * 8 + at);
#pragma unroll
      for (int c = 0; c < kTiles; ++c) {
        uint32_t words[4];
        load_transposed(words, chunk_at(values, k * 16 + lane, c * 4 + tid / kWarp));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const Stored<kType> first(words[2 * j]), second(words[2 * j + 1]);
          const float2 a = of[2 * j], b = of[2 * j + 1];
          step(out[c],
               {{first.template pair<0, 2>(a.x, a.y), first.template pair<1, 3>(a.x, a.y),
                 second.template pair<0, 2>(b.x, b.y), second.template pair<1, 3>(b.x, b.y)}},
               {{rows[2 * j], rows[2 * j + 1]}});
        }
      }
    }
  }
  __device__ static void outputs_are_there() {}
};

}  // namespace invar::cuda::single
