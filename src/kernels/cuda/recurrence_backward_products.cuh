// The products of a recurrence's backward (numerics 9): both sides are rows of bf16 in shared
// memory, and a block of kBackwardThreads multiplies them in an order.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/layout.h"

namespace invar::cuda {

constexpr int kBackwardThreads = 256, kBackwardWarps = kBackwardThreads / kWarp;

// Rows of bf16, with zeros behind what they hold, up to whole leaves. Elements between two rows
// are so many that threads meet few conflicts of banks.
struct Operand {
  bf16_t* data;
  int stride;
  __device__ bf16_t& at(int row, int i) const { return data[row * stride + i]; }
  __device__ const uint32_t* words(int row) const {
    return reinterpret_cast<const uint32_t*>(data + row * stride);
  }
};
constexpr int operand_stride(Order order, int inner) {
  return static_cast<int>(round_up(inner, kLeafPad)) + (order == Order::hopper ? 16 : 8);
}
constexpr int whole_tiles(int rows) {
  return static_cast<int>(round_up(rows, 16));
}

// An operand's elements at(row, inner), and what the neighbour in memory differs in.
enum class Along { inner, rows };
template <Along kAlong, typename At>
struct Elements {
  At at;
};
template <typename At>
__device__ Elements<Along::inner, At> along_inner(const At& at) {
  return {at};
}
template <typename At>
__device__ Elements<Along::rows, At> along_rows(const At& at) {
  return {at};
}

// Rows of a hopper step's words: a warp has 16 rows of x by 8 of w.
template <typename Use>
__device__ void multiply_hopper(const Operand& x, int rows, const Operand& w, int outputs,
                                int inner, const Use& use) {
  const int lane = threadIdx.x % kWarp, i = lane / 4, j = lane % 4;
  const int across = (outputs + 7) / 8, all = across * ((rows + 15) / 16);
  for (int tile = threadIdx.x / kWarp; tile < all; tile += kBackwardWarps) {
    const int m = tile / across * 16, n = tile % across * 8;
    const uint32_t *first = x.words(m + 2 * i), *second = x.words(m + 2 * i + 1),
                   *row = w.words(n + i);
    float d[4] = {};
    for (int s = 0; s < (inner + 15) / 16; ++s) {
      const StepRows a = load_row(first, s, lane), b = load_row(second, s, lane);
      step(d, {{a.b[0], b.b[0], a.b[1], b.b[1]}}, load_row(row, s, lane));
    }
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (const int t = m + 2 * i + k / 2, o = n + 2 * j + k % 2; t < rows && o < outputs)
        use(t, o, d[k] + 0.0f);
  }
}

// A thread has four rows of x and one of w.
template <typename Use>
__device__ void multiply_portable(const Operand& x, int rows, const Operand& w, int outputs,
                                  int inner, const Use& use) {
  constexpr int kRows = 4;
  const auto low = [](uint32_t pair) { return __uint_as_float(pair << 16); };
  const auto high = [](uint32_t pair) { return __uint_as_float(pair & 0xffff0000); };
  for (int at = threadIdx.x; at < (rows + kRows - 1) / kRows * outputs; at += kBackwardThreads) {
    const int m = at / outputs * kRows, n = at % outputs;
    float sums[kRows] = {};
    for (int leaf = 0; leaf < inner; leaf += kLeafPad) {
      float even[kRows] = {}, odd[kRows] = {};
#pragma unroll
      for (int pair = leaf / 2; pair < (leaf + kLeafPad) / 2; pair += 4) {
        const uint4 y = *reinterpret_cast<const uint4*>(w.words(n) + pair);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const uint4 z = *reinterpret_cast<const uint4*>(x.words(m + r) + pair);
          even[r] = __fmaf_rn(low(z.x), low(y.x), even[r]);
          odd[r] = __fmaf_rn(high(z.x), high(y.x), odd[r]);
          even[r] = __fmaf_rn(low(z.y), low(y.y), even[r]);
          odd[r] = __fmaf_rn(high(z.y), high(y.y), odd[r]);
          even[r] = __fmaf_rn(low(z.z), low(y.z), even[r]);
          odd[r] = __fmaf_rn(high(z.z), high(y.z), odd[r]);
          even[r] = __fmaf_rn(low(z.w), low(y.w), even[r]);
          odd[r] = __fmaf_rn(high(z.w), high(y.w), odd[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] = sums[r] + (even[r] + odd[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (m + r < rows) use(m + r, n, sums[r] + 0.0f);
  }
}

// The two operands of a block's products.
template <Order order>
class Operands {
 public:
  // The elements that products of rows of up to `key_size` and `value_size`, and of slots, take.
  static constexpr int x_elements(int slots, int key_size, int value_size) {
    const int by_slots = slots * operand_stride(order, most(slots, key_size, value_size));
    const int by_keys = whole_tiles(key_size) * operand_stride(order, slots);
    return by_slots > by_keys ? by_slots : by_keys;
  }
  static constexpr int w_elements(int slots, int key_size, int value_size) {
    const int side = most(slots, key_size, value_size);
    return whole_tiles(side) * operand_stride(order, side);
  }

  __device__ Operands(bf16_t* memory, int x_elements) : x_{memory, 0}, w_{memory + x_elements, 0} {}

  // use(row, output, dot) by whichever thread has the dot of `inner` elements. What the block has
  // written before is there, and operands may be put anew behind the next barrier.
  template <Along along_x, typename AtX, Along along_w, typename AtW, typename Use>
  __device__ void multiply(int rows, int outputs, int inner, const Elements<along_x, AtX>& x,
                           const Elements<along_w, AtW>& w, const Use& use) {
    __syncthreads();
    put(w_, outputs, inner, w);
    multiply_by_same(rows, outputs, inner, x, use);
  }
  // The same with the w that is there.
  template <Along along, typename At, typename Use>
  __device__ void multiply_by_same(int rows, int outputs, int inner, const Elements<along, At>& x,
                                   const Use& use) {
    __syncthreads();
    put(x_, rows, inner, x);
    __syncthreads();
    if constexpr (order == Order::hopper)
      multiply_hopper(x_, rows, w_, outputs, inner, use);
    else
      multiply_portable(x_, rows, w_, outputs, inner, use);
  }
  // A w of zeros, whose elements the block puts there itself.
  __device__ const Operand& clear_w(int outputs, int inner) {
    __syncthreads();
    put(w_, outputs, inner, along_inner([](int, int) { return bf16_t{0}; }));
    __syncthreads();
    return w_;
  }

 private:
  static constexpr int most(int a, int b, int c) {
    return a > b ? (a > c ? a : c) : (b > c ? b : c);
  }

  template <Along along, typename At>
  __device__ static void put(Operand& to, int rows, int inner, const Elements<along, At>& x) {
    to.stride = operand_stride(order, inner);
    const int all = whole_tiles(rows), pairs = static_cast<int>(round_up(inner, kLeafPad)) / 2;
    for (int i = threadIdx.x; i < all * pairs; i += kBackwardThreads) {
      const int row = along == Along::inner ? i / pairs : i % all;
      const int pair = along == Along::inner ? i % pairs : i / all;
      const auto at = [&](int k) -> uint32_t {
        return row < rows && k < inner ? x.at(row, k) : bf16_t{0};
      };
      reinterpret_cast<uint32_t*>(to.data + row * to.stride)[pair] = at(2 * pair) | at(2 * pair + 1)
                                                                                        << 16;
    }
  }

  Operand x_, w_;
};

}  // namespace invar::cuda
