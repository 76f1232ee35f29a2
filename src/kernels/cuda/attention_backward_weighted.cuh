// Weighted sums over rows of a tile of attention_backward.cu, for 32 rows of weights, and where
// they go. A thread has kValues of them.
#pragma once

#include "kernels/cuda/attention_backward_dots.cuh"

namespace invar::cuda {

namespace {

template <Order order, int kPairs>  // kPairs * 64 head elements at most
struct Sums;

// A thread has 4 rows of weights by kPairs pairs of head elements.
template <int kPairs>
struct Sums<Order::portable, kPairs> {
  static constexpr int kValues = 8 * kPairs;
  float of[kValues] = {};

  __device__ static int row(int i) {
    return static_cast<int>(threadIdx.x) / kWarp * 4 + i / (2 * kPairs);
  }
  __device__ static int element(int i) {
    const int lane = threadIdx.x % kWarp, column = i % (2 * kPairs);
    return 2 * (lane + column / 2 * kWarp) + column % 2;
  }

  // of[i] = of[i] + the leaf of (weights[row(i)][s], x[s][element(i)]) over s.
  __device__ void add(const Rows& weights, const Rows& x, const Rows&, int words) {
    const int first = row(0), lane = threadIdx.x % kWarp;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int word = lane + pair * kWarp;
      if (word >= words) continue;
      float even[4][2] = {}, odd[4][2] = {};
#pragma unroll
      for (int s = 0; s < kTile / 2; ++s) {
        const uint32_t a = x.at(2 * s, word), b = x.at(2 * s + 1, word);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const uint32_t w = weights.at(first + r, s);
          even[r][0] = __fmaf_rn(low(w), low(a), even[r][0]);
          even[r][1] = __fmaf_rn(low(w), high(a), even[r][1]);
          odd[r][0] = __fmaf_rn(high(w), low(b), odd[r][0]);
          odd[r][1] = __fmaf_rn(high(w), high(b), odd[r][1]);
        }
      }
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& sum = of[r * 2 * kPairs + 2 * pair + i];
          sum = sum + (even[r][i] + odd[r][i]);
        }
    }
  }
};

// A warp has all rows of weights by kPairs times 8 head elements: two instructions each.
template <int kPairs>
struct Sums<Order::hopper, kPairs> {
  static constexpr int kValues = 8 * kPairs;
  float of[kValues] = {};

  __device__ static int row(int i) {
    return i / 4 % 2 * 16 + static_cast<int>(threadIdx.x) % kWarp / 4 * 2 + i % 4 / 2;
  }
  __device__ static int element(int i) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    return (i / 8 * kWarps + warp) * 8 + lane % 4 * 2 + i % 2;
  }

  // of[i] goes on with steps of (weights[row(i)][s], columns[element(i)][s]).
  __device__ void add(const Rows& weights, const Rows&, const Rows& columns, int words) {
    const int warp = threadIdx.x / kWarp;
#pragma unroll
    for (int s = 0; s < kOther<Order::hopper> / 16; ++s) {
      const StepOutputs outputs[2] = {load_outputs(weights, 0, s), load_outputs(weights, 16, s)};
#pragma unroll
      for (int c = 0; c < kPairs; ++c) {
        const int first = (c * kWarps + warp) * 8;
        if (first >= 2 * words) continue;
        const StepRows rows = load_rows(columns, first, s);
        step(reinterpret_cast<float(&)[4]>(of[8 * c]), outputs[0], rows);
        step(reinterpret_cast<float(&)[4]>(of[8 * c + 4]), outputs[1], rows);
      }
    }
  }
};

// The + 0 behind the chain of a head.
template <typename Sums>
__device__ void end_head(Sums& sums) {
#pragma unroll
  for (int i = 0; i < Sums::kValues; ++i) sums.of[i] = sums.of[i] + 0.0f;
}

// To the rows of d_qkv from position `first` on.
template <typename Sums>
__device__ void write(const AttentionBackwardParams& p, const Sequence& sequence, int64_t first,
                      int64_t head, const Sums& sums) {
  const int head_dim = p.forward.kv.head_dim;
#pragma unroll
  for (int i = 0; i < Sums::kValues; ++i) {
    const int64_t position = first + Sums::row(i);
    const int e = Sums::element(i);
    if (e < head_dim && sequence.has(position))
      p.d_qkv[(sequence.begin + position) * p.d_qkv_stride + head * head_dim + e] = sums.of[i];
  }
}

}  // namespace

}  // namespace invar::cuda
