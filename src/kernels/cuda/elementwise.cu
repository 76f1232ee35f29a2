// Everything that is not a matrix product: kernels/reference/elementwise.cc on a GPU.
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

__device__ __forceinline__ int64_t global_index() {
  return int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

// ---- Embedding

__global__ void embed_kernel(EmbedParams p) {
  const int64_t i = global_index();
  if (i >= p.rows * p.width) return;
  const int64_t token = p.tokens[i / p.width], d = i % p.width;
  int64_t at = token * p.width + d;
  if (p.panels)
    at = p.type == DType::bf16 ? packed_index_bf16(token, d, p.width)
                               : packed_index_f32(token, d, p.width);
  p.out[i] = value_at(p.table, p.type, at) + 0.0f;  // + 0: flushes subnormals
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
  const int padded = static_cast<int>(round_up(width, kLeafPad));
  if (p.out.type == DType::bf16) {  // rows begin at an even element
    uint32_t* to = reinterpret_cast<uint32_t*>(static_cast<bf16_t*>(p.out.data) + t * p.out.stride);
    for (int i = tid * 2; i < padded; i += 2 * kThreads)
      to[i / 2] = f32_to_bf16(value(i)) | static_cast<uint32_t>(f32_to_bf16(value(i + 1))) << 16;
  } else {
    for (int i = tid; i < padded; i += kThreads) store(p.out, t * p.out.stride + i, value(i));
  }
}

// ---- From q, k and v to the queries and the cache: one warp per row and head

// A lane's pairs of a head, i and i + E/2 for i = lane, lane + 32 ..., and what rotates them; only
// constant indices, so that all of it is registers. kHeadDim 0: any up to 256.
template <int kHeadDim>
struct HeadPairs {
  static constexpr int kMost = (kHeadDim ? kHeadDim : 256) / 2 / kWarp;
  float c[kMost], s[kMost], low_weight[kMost], high_weight[kMost];
  float low[kMost], high[kMost];

  __device__ static bool has(int i, int half) { return kHeadDim || i < half; }

  // What is there before the head is.
  __device__ HeadPairs(const QkvParams& p, int64_t row, const float* norm, int lane) {
    const int half = p.kv.head_dim / 2;
    const int64_t at = int64_t{p.positions[row]} * half;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const int i = lane + j * kWarp;
      if (!has(i, half)) continue;
      c[j] = p.cos[at + i];
      s[j] = p.sin[at + i];
      low_weight[j] = norm ? norm[i] : 1.0f;
      high_weight[j] = norm ? norm[i + half] : 1.0f;
    }
  }

  // Reads a head, normalises it (when `is_normed`) and rotates it.
  __device__ void take(const QkvParams& p, const float* in, bool is_normed, int lane) {
    const int e = p.kv.head_dim, half = e / 2;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const int i = lane + j * kWarp;
      if (!has(i, half)) continue;
      low[j] = in[i];
      high[j] = in[i + half];
    }
    if (is_normed) {
      const float rs = 1.0f / math::sqrt(squares(in, e, lane) / static_cast<float>(e) + p.norm_eps);
#pragma unroll
      for (int j = 0; j < kMost; ++j) {
        low[j] = (low[j] * rs) * low_weight[j];
        high[j] = (high[j] * rs) * high_weight[j];
      }
    }
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const float a = low[j], b = high[j];
      low[j] = __fmaf_rn(a, c[j], -(b * s[j]));
      high[j] = __fmaf_rn(b, c[j], a * s[j]);
    }
  }

  // sum64 of the squares, lanes l and l + 32 of the 64 by lane l.
  __device__ float squares(const float* in, int e, int lane) const {
    float first = 0.0f, second = 0.0f;
    if constexpr (kHeadDim == 128) {
      first = __fmaf_rn(low[0], low[0], first);
      first = __fmaf_rn(high[0], high[0], first);
      second = __fmaf_rn(low[1], low[1], second);
      second = __fmaf_rn(high[1], high[1], second);
    } else {
      for (int i = lane; i < e; i += 64) first = __fmaf_rn(in[i], in[i], first);
      for (int i = lane + 32; i < e; i += 64) second = __fmaf_rn(in[i], in[i], second);
    }
    return __shfl_sync(kAllLanes, halve64(first, second), 0);
  }
};

__device__ bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7f800000) != 0x7f800000;
}

template <int kHeadDim>
__global__ void qkv_kernel(QkvParams p) {
  using Pairs = HeadPairs<kHeadDim>;
  const int lane = threadIdx.x % kWarp;
  const int64_t slots = p.heads + p.kv.kv_heads;
  const int64_t item = global_index() / kWarp, t = item / slots;
  let_next_kernel_start();
  if (t >= p.rows) return wait_for_kernels_before();
  const int slot = static_cast<int>(item % slots), e = p.kv.head_dim, half = e / 2;
  const float* in = p.qkv + t * p.qkv_stride + int64_t{slot} * e;
  const bool is_query = slot < p.heads;
  const float* norm = is_query ? p.q_norm : p.k_norm;
  Pairs pairs(p, t, norm, lane);
  const int write_begin = p.write_begin[t], write_end = p.write_begin[t + 1];
  wait_for_kernels_before();
  pairs.take(p, in, norm != nullptr, lane);
  if (is_query) {
    const int64_t padded = round_up(e, 32);
    bf16_t* q = p.q + (t * p.heads + slot) * padded;
#pragma unroll
    for (int j = 0; j < Pairs::kMost; ++j) {
      const int i = lane + j * kWarp;
      if (!Pairs::has(i, half)) continue;
      q[i] = f32_to_bf16(pairs.low[j]);
      q[i + half] = f32_to_bf16(pairs.high[j]);
    }
    if (e + lane < padded) q[e + lane] = 0;
    return;
  }
  const int g = slot - p.heads;
  const float* value = in + int64_t{p.kv.kv_heads} * e;
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
      p.kv.keys[p.kv.key_index(block, g, place, i)] = f32_to_cached_bf16(pairs.low[j]);
      p.kv.keys[p.kv.key_index(block, g, place, i + half)] = f32_to_cached_bf16(pairs.high[j]);
      p.kv.values[p.kv.value_index(block, g, place, i)] = f32_to_cached_bf16(low);
      p.kv.values[p.kv.value_index(block, g, place, i + half)] = f32_to_cached_bf16(high);
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
  constexpr int kHeadDim = 128, kAtOnce = 6, kWarps = kThreads / kWarp;
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

// Whether the kernel above takes them; with fewer rows a warp for each head is done earlier.
bool takes_rows(const QkvParams& p) {
  constexpr int64_t kManyRows = 512;
  const auto is_aligned = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % 8 == 0; };
  return p.rows >= kManyRows && p.kv.head_dim == 128 && p.kv.layout == CacheLayout::rows &&
         p.qkv_stride % 2 == 0 && is_aligned(p.qkv) && is_aligned(p.cos) && is_aligned(p.sin) &&
         is_aligned(p.q_norm) && is_aligned(p.k_norm);
}

// ---- Small ones

__global__ void add_kernel(AddParams p) {
  const int64_t i = global_index();
  if (i >= p.rows * p.width) return;
  float x = p.x[i];
  if (p.bias) x = x + p.bias[i % p.width];
  p.y[i] = p.y[i] + x;
}

// One block per key/value head; copies in order.
__global__ void copy_slots_kernel(CopySlotsParams p) {
  const KvLayer& kv = p.kv;
  const int64_t g = blockIdx.x;
  for (int64_t n = 0; n < p.count; ++n) {
    const SlotCopy c = p.copies[n];
    const int64_t elements = int64_t{c.end - c.begin} * kv.head_dim;
    for (int64_t i = threadIdx.x; i < elements; i += kThreads) {
      const int64_t slot = c.begin + i / kv.head_dim, e = i % kv.head_dim;
      kv.keys[kv.key_index(c.to, g, slot, e)] = kv.keys[kv.key_index(c.from, g, slot, e)];
      kv.values[kv.value_index(c.to, g, slot, e)] = kv.values[kv.value_index(c.from, g, slot, e)];
    }
    __syncthreads();
  }
}

// ---- Logits: one block per row, 8 segments of 64 lanes (numerics 3)

constexpr int kLogitThreads = 512;

__global__ void log_sum_exp_kernel(LogitsParams p) {
  __shared__ float best[kLogitThreads];
  __shared__ int best_id[kLogitThreads];
  __shared__ float segments[8];
  __shared__ int any_nan;
  const int64_t t = blockIdx.x;
  const float* x = p.logits + t * p.stride;
  const int tid = threadIdx.x;
  if (tid == 0) any_nan = 0;
  __syncthreads();
  float top = -std::numeric_limits<float>::infinity();
  int top_id = -1;
  bool nan = false;
  for (int64_t i = tid; i < p.vocab; i += kLogitThreads) {
    const float v = x[i];
    nan = nan || v != v;
    if (top_id < 0 || v > top) {
      top = v;
      top_id = static_cast<int>(i);
    }
  }
  if (nan) any_nan = 1;
  best[tid] = top;
  best_id[tid] = top_id;
  for (int half = kLogitThreads / 2; half >= 1; half /= 2) {
    __syncthreads();
    if (tid >= half || best_id[tid + half] < 0) continue;
    const float other = best[tid + half];
    if (best_id[tid] < 0 || other > best[tid] ||
        (other == best[tid] && best_id[tid + half] < best_id[tid])) {
      best[tid] = other;
      best_id[tid] = best_id[tid + half];
    }
  }
  __syncthreads();
  const float max = best[0];
  const bool has_nan = any_nan;
  if (tid == 0) {
    p.has_nan[t] = has_nan;
    p.argmax[t] = has_nan ? 0 : best_id[0];
    p.max[t] = has_nan ? std::numeric_limits<float>::quiet_NaN() : max;
  }
  if (!p.log_sum) return;

  const int64_t length = 64 * ((p.vocab + 511) / 512), begin = tid / 64 * length;
  const int64_t end = begin + length < p.vocab ? begin + length : p.vocab;
  float lane = 0.0f;
  for (int64_t i = begin + tid % 64; i < end; i += 64) lane = lane + math::exp(x[i] - max);
  __syncthreads();
  best[tid] = lane;
  __syncthreads();
  const int warp = tid / kWarp, l = tid % kWarp;
  if (warp < 8) {
    const float sum = halve64(best[warp * 64 + l], best[warp * 64 + 32 + l]);
    if (l == 0) segments[warp] = sum;
  }
  __syncthreads();
  if (tid != 0) return;
  const float sum = ((segments[0] + segments[1]) + (segments[2] + segments[3])) +
                    ((segments[4] + segments[5]) + (segments[6] + segments[7]));
  p.log_sum[t] = has_nan ? std::numeric_limits<float>::quiet_NaN() : math::log(sum);
}

// ---- For measuring

__global__ void read_kernel(const uint4* data, int64_t count, uint64_t* sum) {
  uint32_t x = 0;
#pragma unroll 8
  for (int64_t i = global_index(); i < count; i += int64_t{gridDim.x} * kThreads) {
    const uint4 v = data[i];
    x ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (x == 0x12345678) atomicAdd(reinterpret_cast<unsigned long long*>(sum), 1ull);
}

}  // namespace

void read(const void* data, size_t bytes, uint64_t* sum, const Execution& on) {
  read_kernel<<<132 * 8, kThreads, 0, stream_of(on)>>>(static_cast<const uint4*>(data),
                                                       static_cast<int64_t>(bytes / 16), sum);
  cuda_launched("reading memory");
}

void embed(const EmbedParams& p, const Execution& on) {
  if (p.rows == 0) return;
  embed_kernel<<<blocks_for(p.rows * p.width), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("embed");
}

void rms_norm(const RmsNormParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("rms_norm", rms_norm_kernel,
         {.blocks = static_cast<int>(p.rows),
          .threads = kThreads,
          .shared_bytes = static_cast<int>(2 * p.width * sizeof(float)),
          .early = true},
         on, p);
}

void qkv(const QkvParams& p, const Execution& on) {
  if (p.rows == 0) return;
  if (takes_rows(p))
    return launch(
        "qkv", qkv_rows_kernel,
        {.blocks = static_cast<int>(p.rows), .threads = kThreads, .shared_bytes = 0, .early = true},
        on, p);
  launch("qkv", p.kv.head_dim == 128 ? qkv_kernel<128> : qkv_kernel<0>,
         {.blocks = static_cast<int>(blocks_for(p.rows * (p.heads + p.kv.kv_heads) * kWarp)),
          .threads = kThreads,
          .shared_bytes = 0,
          .early = true},
         on, p);
}

void add(const AddParams& p, const Execution& on) {
  if (p.rows == 0) return;
  add_kernel<<<blocks_for(p.rows * p.width), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("add");
}

void copy_slots(const CopySlotsParams& p, const Execution& on) {
  copy_slots_kernel<<<p.kv.kv_heads, kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("copy_slots");
}

void log_sum_exp(const LogitsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  log_sum_exp_kernel<<<static_cast<unsigned>(p.rows), kLogitThreads, 0, stream_of(on)>>>(p);
  cuda_launched("log_sum_exp");
}

}  // namespace invar::cuda
