// How a warpgroup of attention_tiles.cu writes its rows: O / L as bf16 (numerics 4).
#pragma once

#include "kernels/cuda/attention_softmax.cuh"

namespace invar::cuda {

template <int kValues>
__device__ __forceinline__ void range_of(const float (&out)[kValues], float& low, float& high) {
#pragma unroll
  for (int x = 0; x < kValues; ++x) {
    low = fminf(low, fabsf(out[x]));
    high = fmaxf(high, fabsf(out[x]));
  }
}

// The words that a lane of four has of four blocks of 8 columns become all words of one block.
__device__ __forceinline__ void gather_block(uint32_t (&words)[4], int lane) {
#pragma unroll
  for (int apart = 1; apart <= 2; apart *= 2) {
    const bool is_upper = lane & apart;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int low = apart == 1 ? 2 * n : n, high = low + apart;
      const uint32_t other = __shfl_xor_sync(kAllLanes, is_upper ? words[low] : words[high], apart);
      words[low] = is_upper ? other : words[low];
      words[high] = is_upper ? words[high] : other;
    }
  }
}

// Quotients of both rows where the whole warp's are tame: by a reciprocal and two corrections,
// which is exact there, and without branches.
template <int kValues>
__device__ __forceinline__ void write_tame(const float (&out)[kValues], const RowState& state,
                                           bf16_t* const (&to)[2], int lane,
                                           const bool (&wanted)[2]) {
  constexpr int kBlocks = kValues / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = state.sum[r], reciprocal = __frcp_rn(sum);
    uint32_t words[kBlocks];
#pragma unroll
    for (int x = 0; x < kBlocks; ++x) {
      float y[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float o = out[4 * x + 2 * r + i];
        float q = o * reciprocal;
        q = __fmaf_rn(__fmaf_rn(-sum, q, o), reciprocal, q);
        y[i] = __fmaf_rn(__fmaf_rn(-sum, q, o), reciprocal, q);
      }
      words[x] = pack_bf16(y[0], y[1]);
    }
    if constexpr (kBlocks % 4 == 0) {
#pragma unroll
      for (int x = 0; x < kBlocks; x += 4) {
        uint32_t four[4] = {words[x], words[x + 1], words[x + 2], words[x + 3]};
        gather_block(four, lane);
        if (wanted[r])
          *reinterpret_cast<uint4*>(to[r] + (x + lane % 4) * 8) = {four[0], four[1], four[2],
                                                                   four[3]};
      }
    } else {
#pragma unroll
      for (int x = 0; x < kBlocks; ++x)
        if (wanted[r]) *reinterpret_cast<uint32_t*>(to[r] + x * 8 + lane % 4 * 2) = words[x];
    }
  }
}

// Any quotients.
template <int kValues>
__device__ __forceinline__ void write(const float (&out)[kValues], const RowState& state,
                                      bf16_t* const (&to)[2], int lane, const bool (&wanted)[2]) {
#pragma unroll
  for (int x = 0; x < kValues; x += 2) {
    const int r = x / 2 % 2;
    if (wanted[r])
      *reinterpret_cast<uint32_t*>(to[r] + x / 4 * 8 + lane % 4 * 2) =
          pack_any_bf16(out[x] / state.sum[r], out[x + 1] / state.sum[r]);
  }
}

}  // namespace invar::cuda
