// Kernels of the embedding and of norms: kernels/reference/elementwise.cc on a GPU.
#pragma once

#include "kernels/cuda/blocks.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

// ---- Embedding

__global__ void embed_kernel(EmbedParams p) {
  const int64_t i = thread_of_grid();
  const Matrix& w = p.table;
  if (i >= p.rows * w.k) return;
  const int64_t token = p.tokens[i / w.k], d = i % w.k;
  int64_t at = token * w.row_elements() + d;
  if (w.layout == WeightLayout::panels)
    at = w.type == DType::bf16 ? packed_index_bf16(token, d, w.k) : packed_index_f32(token, d, w.k);
  const float value = value_at(w.data, w.type, at) + 0.0f;  // + 0: flushes subnormals
  p.out[i] = value * p.scale;
}

// ---- RMSNorm: one block per row. The weights, which no kernel writes, are read while the kernels
// before this one still run.

__global__ void rms_norm_kernel(RmsNormParams p) {
  extern __shared__ float values[];  // [D] of weights, [D] of x
  __shared__ float lanes[64];
  __shared__ float rs;
  const int64_t t = blockIdx.x;
  const int tid = threadIdx.x, width = static_cast<int>(p.width);
  float *weight = values, *x = values + width;
  let_next_kernel_start();
  const float* from = p.x + (p.rows_of ? p.rows_of[t] : t) * p.x_stride;
#pragma unroll 4
  for (int i = tid; i < width; i += kThreads) weight[i] = p.weight[i];
  wait_for_kernels_before();
#pragma unroll 16
  for (int i = tid; i < width; i += kThreads) x[i] = from[i];
  __syncthreads();
  if (tid < 64) {
    float lane = 0.0f;
#pragma unroll 16
    for (int i = tid; i < width; i += 64) lane = __fmaf_rn(x[i], x[i], lane);
    lanes[tid] = lane;
  }
  __syncthreads();
  if (tid < kWarp) {
    const float sum = halve64(lanes[tid], lanes[tid + 32]);
    if (tid == 0) rs = 1.0f / math::sqrt(sum / static_cast<float>(p.width) + p.eps);
  }
  __syncthreads();
  const auto value = [&](int i) { return i < width ? (x[i] * rs) * weight[i] : 0.0f; };
  const int padded = p.keeps_pad ? width : static_cast<int>(round_up(width, kLeafPad));
  if (p.out.type == DType::bf16) {  // rows begin at an even element
    uint32_t* to = reinterpret_cast<uint32_t*>(static_cast<bf16_t*>(p.out.data) + t * p.out.stride);
    for (int i = tid * 2; i < padded; i += 2 * kThreads)
      to[i / 2] = f32_to_bf16(value(i)) | static_cast<uint32_t>(f32_to_bf16(value(i + 1))) << 16;
  } else {
    for (int i = tid; i < padded; i += kThreads) store(p.out, t * p.out.stride + i, value(i));
  }
}

// The same of rows of 256 * kPer, which the threads keep in registers: a block takes so little
// shared memory that the product before it and the one after it, which fill a multiprocessor's with
// their rings, run on the same one. A quarter of the threads has a quarter of the row, 64 of them a
// lane of sum64 each: the chain of a lane goes from quarter to quarter.
template <int kPer>
__global__ __launch_bounds__(kThreads) void rms_norm_row_kernel(RmsNormParams p) {
  __shared__ float lanes[64];
  const int64_t t = blockIdx.x;
  const int quarter = threadIdx.x / 64, of_64 = threadIdx.x % 64, lane = threadIdx.x % kWarp;
  const int begin = quarter * kPer * 64 + of_64;
  let_next_kernel_start();
  const float* from = p.x + (p.rows_of ? p.rows_of[t] : t) * p.x_stride + begin;
  float weight[kPer], x[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) weight[j] = p.weight[begin + 64 * j];
  wait_for_kernels_before();
#pragma unroll
  for (int j = 0; j < kPer; ++j) x[j] = from[64 * j];
  for (int turn = 0; turn < 4; ++turn) {
    if (turn == quarter) {
      float squares = turn == 0 ? 0.0f : lanes[of_64];
#pragma unroll
      for (int j = 0; j < kPer; ++j) squares = __fmaf_rn(x[j], x[j], squares);
      lanes[of_64] = squares;
    }
    __syncthreads();
  }
  const float sum = __shfl_sync(kAllLanes, halve64(lanes[lane], lanes[lane + kWarp]), 0);
  const float rs = 1.0f / math::sqrt(sum / static_cast<float>(p.width) + p.eps);
  // Neighbours exchange values, so that each has pairs of elements, of every other 64.
  const bool is_odd = lane % 2;
  bf16_t* to = static_cast<bf16_t*>(p.out.data) + t * p.out.stride + begin - is_odd + is_odd * 64;
#pragma unroll
  for (int j = 0; j < kPer; j += 2) {
    const float first = (x[j] * rs) * weight[j], second = (x[j + 1] * rs) * weight[j + 1];
    const float other = __shfl_xor_sync(kAllLanes, is_odd ? first : second, 1);
    const float low = is_odd ? other : first, high = is_odd ? second : other;
    *reinterpret_cast<uint32_t*>(to + 64 * j) =
        f32_to_bf16(low) | static_cast<uint32_t>(f32_to_bf16(high)) << 16;
  }
}

// The kernel above for a width, or null.
auto rms_norm_row_kernel_of(int64_t width) -> void (*)(RmsNormParams) {
  switch (width) {
    case 1024:
      return rms_norm_row_kernel<4>;
    case 2048:
      return rms_norm_row_kernel<8>;
    case 4096:
      return rms_norm_row_kernel<16>;
    case 5120:
      return rms_norm_row_kernel<20>;
    case 8192:
      return rms_norm_row_kernel<32>;
    default:
      return nullptr;
  }
}

// ---- LayerNorm: one block per row, which it reads again where it needs it.

__global__ void layer_norm_kernel(LayerNormParams p) {
  __shared__ float lanes[64];
  __shared__ float mean, rs;
  const int64_t t = blockIdx.x;
  const int tid = threadIdx.x, width = static_cast<int>(p.width);
  const float* x = p.x + (p.rows_of ? p.rows_of[t] : t) * p.x_stride;
  const float count = static_cast<float>(p.width);
  // The sum64 of what `add` makes of a lane and an element, for all threads.
  const auto sum = [&](auto add) {
    if (tid < 64) {
      float lane = 0.0f;
      for (int i = tid; i < width; i += 64) lane = add(lane, x[i]);
      lanes[tid] = lane;
    }
    __syncthreads();
    return halve64(lanes[tid % kWarp], lanes[tid % kWarp + 32]);
  };
  const float all = sum([](float lane, float v) { return lane + v; });
  if (tid == 0) mean = all / count;
  __syncthreads();
  const float squares = sum([&](float lane, float v) {
    const float d = v - mean;
    return __fmaf_rn(d, d, lane);
  });
  if (tid == 0) rs = 1.0f / math::sqrt(squares / count + p.eps);
  __syncthreads();
  for (int i = tid; i < static_cast<int>(round_up(width, kLeafPad)); i += kThreads)
    store(p.out, t * p.out.stride + i,
          i < width ? ((x[i] - mean) * rs) * p.weight[i] + p.bias[i] : 0.0f);
}

}  // namespace

}  // namespace invar::cuda
