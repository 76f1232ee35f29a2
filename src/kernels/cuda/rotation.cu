// From q, k and v to the queries and the cache: heads are normalised, rotated and rounded. One warp
// per row and head.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/rotation.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// As queries and the cache of T have it.
template <typename T>
__device__ __forceinline__ T of_query(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return f32_to_bf16(x);
}
template <typename T>
__device__ __forceinline__ T of_cached(float x) {
  if constexpr (std::is_same_v<T, float>)  // a subnormal is stored as a zero of its sign, too
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : f32_to_cached_f32(x);
  else
    return f32_to_cached_bf16(x);
}

template <int kHeadDim, typename T, int kLargest = 256>
__global__ void qkv_kernel(QkvParams p) {
  using Pairs = HeadPairs<kHeadDim, kLargest>;
  const int lane = threadIdx.x % kWarp;
  const int64_t slots = p.heads + p.kv.kv_heads;
  const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp, t = item / slots;
  let_next_kernel_start();
  if (t >= p.rows) return wait_for_kernels_before();
  const int slot = static_cast<int>(item % slots), e = p.kv.head_dim, half = e / 2;
  const float* in = p.qkv + t * p.qkv_stride + int64_t{slot} * e;
  const bool is_query = slot < p.heads;
  const float* norm = is_query ? p.q_norm : p.k_norm;
  Pairs pairs(p, t, norm, lane);
  const int write_begin = p.write_begin[t], write_end = p.write_begin[t + 1];
  wait_for_kernels_before();
  pairs.load(p, in, lane);
  pairs.rotate(p, in, norm != nullptr, lane);
  if (is_query) {
    const int64_t padded = round_up(e, 32);
    T* q = reinterpret_cast<T*>(p.q) + (t * p.heads + slot) * padded;
#pragma unroll
    for (int j = 0; j < Pairs::kMost; ++j) {
      const int i = lane + j * kWarp;
      if (!Pairs::has(i, half)) continue;
      q[i] = of_query<T>(pairs.low[j]);
      q[i + half] = of_query<T>(pairs.high[j]);
    }
    if (e + lane < padded) q[e + lane] = 0;
    return;
  }
  const int g = slot - p.heads;
  const float* value = in + int64_t{p.kv.kv_heads} * e;
  T *keys = reinterpret_cast<T*>(p.kv.keys), *values = reinterpret_cast<T*>(p.kv.values);
  bool is_odd = false;
#pragma unroll
  for (int j = 0; j < Pairs::kMost; ++j) {
    const int i = lane + j * kWarp;
    if (!Pairs::has(i, half)) continue;
    const float low = value[i], high = value[i + half];
    is_odd = is_odd || !is_finite(pairs.low[j]) || !is_finite(pairs.high[j]) || !is_finite(low) ||
             !is_finite(high);
    for (int w = write_begin; w < write_end; ++w) {
      const int block = p.write_block[w], place = p.write_slot[w];
      keys[p.kv.key_index(block, g, place, i)] = of_cached<T>(pairs.low[j]);
      keys[p.kv.key_index(block, g, place, i + half)] = of_cached<T>(pairs.high[j]);
      values[p.kv.value_index(block, g, place, i)] = of_cached<T>(low);
      values[p.kv.value_index(block, g, place, i + half)] = of_cached<T>(high);
    }
  }
  if (is_odd) p.non_finite[t] = true;
}

// The same with many rows, of heads of 128: one block per row, several heads per warp, which reads
// all of them before it computes the first. Lane l has elements 2l and 2l + 1, and those + 64.
struct HeadQuad {
  float2 low, high;

  __device__ static HeadQuad at(const float* in, int lane) {
    const float2* pairs = reinterpret_cast<const float2*>(in);
    return {pairs[lane], pairs[lane + kWarp]};
  }
  __device__ bool is_finite() const {
    return cuda::is_finite(low.x) && cuda::is_finite(low.y) && cuda::is_finite(high.x) &&
           cuda::is_finite(high.y);
  }
  // sum64 of the squares.
  __device__ float squares() const {
    float even = __fmaf_rn(high.x, high.x, __fmaf_rn(low.x, low.x, 0.0f));
    float odd = __fmaf_rn(high.y, high.y, __fmaf_rn(low.y, low.y, 0.0f));
    for (int apart = 16; apart >= 1; apart /= 2) {
      even = even + __shfl_xor_sync(kAllLanes, even, apart);
      odd = odd + __shfl_xor_sync(kAllLanes, odd, apart);
    }
    return even + odd;
  }
  __device__ void normalize(const HeadQuad& weight, float eps) {
    const float rs = 1.0f / math::sqrt(squares() / 128.0f + eps);
    low = {(low.x * rs) * weight.low.x, (low.y * rs) * weight.low.y};
    high = {(high.x * rs) * weight.high.x, (high.y * rs) * weight.high.y};
  }
  __device__ void rotate(float2 c, float2 s) {
    const float2 a = low, b = high;
    low = {__fmaf_rn(a.x, c.x, -(b.x * s.x)), __fmaf_rn(a.y, c.y, -(b.y * s.y))};
    high = {__fmaf_rn(b.x, c.x, a.x * s.x), __fmaf_rn(b.y, c.y, a.y * s.y)};
  }
  // `round` makes a bf16 of an f32.
  template <typename Round>
  __device__ void store(bf16_t* to, int lane, Round round) const {
    uint32_t* pairs = reinterpret_cast<uint32_t*>(to);
    pairs[lane] = round(low.x) | static_cast<uint32_t>(round(low.y)) << 16;
    pairs[lane + kWarp] = round(high.x) | static_cast<uint32_t>(round(high.y)) << 16;
  }
};

__global__ __launch_bounds__(kThreads) void qkv_rows_kernel(QkvParams p) {
  constexpr int kHeadDim = 128, kAtOnce = 6;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t t = blockIdx.x;
  const int keys = p.heads, values = keys + p.kv.kv_heads, vectors = values + p.kv.kv_heads;
  let_next_kernel_start();
  const int64_t angle = int64_t{p.positions[t]} * (kHeadDim / 2);
  const float2 c = reinterpret_cast<const float2*>(p.cos + angle)[lane],
               s = reinterpret_cast<const float2*>(p.sin + angle)[lane];
  HeadQuad q_norm{}, k_norm{};
  if (p.q_norm) q_norm = HeadQuad::at(p.q_norm, lane);
  if (p.k_norm) k_norm = HeadQuad::at(p.k_norm, lane);
  const int write_begin = p.write_begin[t], write_end = p.write_begin[t + 1];
  wait_for_kernels_before();
  const auto keep = [&](const HeadQuad& head, bf16_t* cache, int group) {
    for (int w = write_begin; w < write_end; ++w)
      head.store(cache + p.kv.row_index(p.write_block[w], group, p.write_slot[w], 0), lane,
                 [](float x) { return f32_to_cached_bf16(x); });
    if (!head.is_finite()) p.non_finite[t] = true;
  };
  for (int first = warp; first < vectors; first += kAtOnce * kWarps) {
    HeadQuad head[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i * kWarps < vectors)
        head[i] = HeadQuad::at(p.qkv + t * p.qkv_stride + (first + i * kWarps) * kHeadDim, lane);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int vector = first + i * kWarps;
      if (vector >= vectors) break;
      if (vector >= values) {
        keep(head[i], p.kv.values, vector - values);
        continue;
      }
      const bool is_key = vector >= keys;
      if (is_key ? p.k_norm : p.q_norm) head[i].normalize(is_key ? k_norm : q_norm, p.norm_eps);
      head[i].rotate(c, s);
      if (is_key)
        keep(head[i], p.kv.keys, vector - keys);
      else
        head[i].store(p.q + (t * p.heads + vector) * kHeadDim, lane,
                      [](float x) { return f32_to_bf16(x); });
    }
  }
}

// Rotates queries, and keys into a cache of T.
template <typename T>
auto kernel_of(int head_dim) -> void (*)(QkvParams) {
  if constexpr (std::is_same_v<T, bf16_t>)
    if (head_dim == 128) return qkv_kernel<128, T>;
  return head_dim <= 256 ? qkv_kernel<0, T> : qkv_kernel<0, T, 576>;
}

// Whether the kernel above takes them; with fewer rows a warp for each head is done earlier.
bool takes_rows(const QkvParams& p) {
  constexpr int64_t kManyRows = 512;
  const auto is_aligned = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % 8 == 0; };
  return p.rows >= kManyRows && p.kv.head_dim == 128 && p.kv.layout == CacheLayout::rows &&
         p.qkv_stride % 2 == 0 && is_aligned(p.qkv) && is_aligned(p.cos) && is_aligned(p.sin) &&
         is_aligned(p.q_norm) && is_aligned(p.k_norm);
}

}  // namespace

void qkv(const QkvParams& p, const Execution& on) {
  if (p.rows == 0) return;
  if (takes_rows(p))
    return launch(
        "qkv", qkv_rows_kernel,
        {.blocks = static_cast<int>(p.rows), .threads = kThreads, .shared_bytes = 0, .early = true},
        on, p);
  launch("qkv", p.kv.is_f32() ? kernel_of<float>(p.kv.head_dim) : kernel_of<bf16_t>(p.kv.head_dim),
         {.blocks = static_cast<int>((p.rows * (p.heads + p.kv.kv_heads) + kWarps - 1) / kWarps),
          .threads = kThreads,
          .shared_bytes = 0,
          .early = true},
         on, p);
}

}  // namespace invar::cuda
