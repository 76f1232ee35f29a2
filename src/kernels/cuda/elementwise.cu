// Norms, embeddings and other small operations: kernels/reference/elementwise.cc on a GPU.
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/aligned.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/early_grid.cuh"
#include "kernels/cuda/embed_and_norms.cuh"
#include "kernels/cuda/operations.h"

namespace invar::cuda {

namespace {

// ---- Small ones

__global__ void curve_kernel(CurveParams p) {
  const int64_t padded = round_up(p.width, kLeafPad), at = thread_of_grid();
  if (at >= p.rows * padded) return;
  const int64_t t = at / padded, i = at % padded;
  store(p.out, t * p.out.stride + i,
        i < p.width ? math::curve(p.curve, p.x[t * p.x_stride + i]) : 0.0f);
}

__global__ void rotate_heads_kernel(RotateHeadsParams p) {
  const int64_t half = p.head_dim / 2, at = thread_of_grid();
  if (at >= p.rows * p.heads * half) return;
  const int64_t i = at % half, head = at / half % p.heads, t = at / half / p.heads;
  const int64_t angle = int64_t{p.positions[t]} * half + i;
  float* x = p.x + t * p.x_stride + head * p.head_dim + i;
  const float a = x[0], b = x[half], c = p.cos[angle], s = p.sin[angle];
  x[0] = __fmaf_rn(a, c, -(b * s));
  x[half] = __fmaf_rn(b, c, a * s);
}

__global__ __launch_bounds__(kThreads) void gate_output_kernel(OutputGateParams p) {
  take_turn();
  const int64_t at = thread_of_grid();
  if (at >= p.rows * p.width) return;
  const int64_t t = at / p.width, i = at % p.width;
  const float gate = 1.0f / (1.0f + math::exp(-p.gate[t * p.gate_stride + i]));
  const int64_t element = t * p.x.stride + i;
  store(p.x, element, value_at(p.x.data, p.x.type, element) * gate);
}

// Four elements of bf16.
__global__ __launch_bounds__(kThreads) void gate_output_fours_kernel(OutputGateParams p) {
  const FourOfRow at(p.width);
  take_turn();
  if (at.first >= p.width) return;
  float gate[kFour];
  load_four(p.gate + at.t * p.gate_stride + at.first, gate);
  bf16_t* x = row_of(p.x, at.t) + at.first;
  const uint2 halves = *reinterpret_cast<const uint2*>(x);
  float y[kFour] = {__uint_as_float(halves.x << 16), __uint_as_float(halves.x & 0xffff0000),
                    __uint_as_float(halves.y << 16), __uint_as_float(halves.y & 0xffff0000)};
#pragma unroll
  for (int c = 0; c < kFour; ++c) y[c] = y[c] * (1.0f / (1.0f + math::exp(-gate[c])));
  store_four(x, y);
}

// One thread per element, pad columns among them.
__global__ void gate_inputs_kernel(GateInputsParams p) {
  const int64_t padded = round_up(p.width, kLeafPad), at = thread_of_grid();
  if (at >= p.rows * padded) return;
  const int64_t t = at / padded, i = at % padded;
  store(p.out, t * p.out.stride + i,
        i < p.width ? math::curve(p.curve, p.x[t * p.width + i]) * p.inputs[t * p.inputs_stride + i]
                    : 0.0f);
}

__global__ void scale_rows_kernel(ScaleRowsParams p) {
  const int64_t i = thread_of_grid();
  if (i < p.rows * p.width) p.x[i] = p.x[i] * p.factor[0];
}

__global__ void scale_logits_kernel(ScaleLogitsParams p) {
  const int64_t at = thread_of_grid();
  if (at >= p.rows * p.width) return;
  float& x = p.x[at / p.width * p.stride + at % p.width];
  float y = x;
  if (p.divisor != 1.0f) y = y / p.divisor;
  if (p.cap > 0) y = p.cap * math::half_tanh((y + y) / p.cap);
  x = y;
}

// One thread per element, pad columns among them.
__global__ void round_kernel(RoundParams p) {
  const int64_t padded = round_up(p.width, kLeafPad), at = thread_of_grid();
  if (at >= p.rows * padded) return;
  const int64_t t = at / padded, i = at % padded, from = p.rows_of ? p.rows_of[t] : t;
  store(p.out, t * p.out.stride + i, i < p.width ? p.x[from * p.x_stride + i] : 0.0f);
}

// A thread has four elements.
__global__ __launch_bounds__(kThreads) void round_four_kernel(RoundParams p) {
  const int64_t padded = round_up(p.width, kLeafPad);
  const auto [t, i] = FourOfRow(padded);
  if (i >= padded) return;
  float x[kFour] = {};
  if (i < p.width) load_four(p.x + (p.rows_of ? p.rows_of[t] : t) * p.x_stride + i, x);
  store_four(static_cast<bf16_t*>(p.out.data) + t * p.out.stride + i, x);
}

__global__ void add_kernel(AddParams p) {
  const int64_t i = thread_of_grid();
  if (i >= p.rows * p.width) return;
  float x = p.x[i / p.width * p.x_stride + i % p.width];
  if (p.bias) x = x + p.bias[i % p.width];
  p.y[i] = p.y[i] + x * p.scale;
}

__global__ void add_silu_kernel(AddSiluParams p) {
  const int64_t i = thread_of_grid();
  if (i < p.count) p.y[i] = p.y[i] + p.x[i] / (1.0f + math::exp(-p.x[i]));
}

// One block per key/value head; copies in order. T: the cache's elements.
template <typename T>
__global__ void copy_slots_kernel(CopySlotsParams p) {
  const KvLayer& kv = p.kv;
  T *keys = reinterpret_cast<T*>(kv.keys), *values = reinterpret_cast<T*>(kv.values);
  const int64_t g = blockIdx.x;
  for (int64_t n = 0; n < p.count; ++n) {
    const SlotCopy c = p.copies[n];
    const int64_t elements = int64_t{c.end - c.begin} * kv.head_dim;
    for (int64_t i = threadIdx.x; i < elements; i += kThreads) {
      const int64_t slot = c.begin + i / kv.head_dim, e = i % kv.head_dim;
      keys[kv.key_index(c.to, g, slot, e)] = keys[kv.key_index(c.from, g, slot, e)];
      values[kv.value_index(c.to, g, slot, e)] = values[kv.value_index(c.from, g, slot, e)];
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
  for (int64_t i = thread_of_grid(); i < count; i += int64_t{gridDim.x} * kThreads) {
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
  if (storage_of(p.table.type).has_blocks()) return embed_blocks(p, on);
  embed_kernel<<<blocks_of(p.rows * p.table.k), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("embed");
}

void rms_norm(const RmsNormParams& p, const Execution& on) {
  if (p.rows == 0) return;
  const auto row_kernel = rms_norm_row_kernel_of(p.width);
  if (row_kernel && p.out.type == DType::bf16)
    return launch(
        "rms_norm", row_kernel,
        {.blocks = static_cast<int>(p.rows), .threads = kThreads, .shared_bytes = 0, .early = true},
        on, p);
  launch("rms_norm", rms_norm_kernel,
         {.blocks = static_cast<int>(p.rows),
          .threads = kThreads,
          .shared_bytes = static_cast<int>(2 * p.width * sizeof(float)),
          .early = true},
         on, p);
}

void layer_norm(const LayerNormParams& p, const Execution& on) {
  if (p.rows == 0) return;
  layer_norm_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("layer_norm");
}

void curve(const CurveParams& p, const Execution& on) {
  if (p.rows == 0) return;
  curve_kernel<<<blocks_of(p.rows * round_up(p.width, kLeafPad)), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("curve");
}

void rotate_heads(const RotateHeadsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  rotate_heads_kernel<<<blocks_of(p.rows * p.heads * p.head_dim / 2), kThreads, 0, stream_of(on)>>>(
      p);
  cuda_launched("rotate_heads");
}

void gate_output(const OutputGateParams& p, const Execution& on) {
  if (p.rows == 0) return;
  const bool is_fours = p.x.type == DType::bf16 && is_by_four(p.width, p.x.stride) &&
                        p.gate_stride % kFour == 0 && are_aligned(16, p.gate, p.x.data);
  if (is_fours)
    return launch("gating outputs", gate_output_fours_kernel, early_grid(fours_of(p.rows, p.width)),
                  on, p);
  launch("gating outputs", gate_output_kernel, early_grid(blocks_of(p.rows * p.width)), on, p);
}

void gate_inputs(const GateInputsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  gate_inputs_kernel<<<blocks_of(p.rows * round_up(p.width, kLeafPad)), kThreads, 0,
                       stream_of(on)>>>(p);
  cuda_launched("gate_inputs");
}

void scale_rows(const ScaleRowsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  scale_rows_kernel<<<blocks_of(p.rows * p.width), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("scale_rows");
}

void scale_logits(const ScaleLogitsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  scale_logits_kernel<<<blocks_of(p.rows * p.width), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("scale_logits");
}

void round(const RoundParams& p, const Execution& on) {
  if (p.rows == 0) return;
  const int64_t elements = p.rows * round_up(p.width, kLeafPad);
  if (p.out.type == DType::bf16 && is_by_four(p.width, p.x_stride) && is_by_four(0, p.out.stride)) {
    round_four_kernel<<<fours_of(p.rows, round_up(p.width, kLeafPad)), kThreads, 0,
                        stream_of(on)>>>(p);
    return cuda_launched("round");
  }
  round_kernel<<<blocks_of(elements), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("round");
}

void add(const AddParams& p, const Execution& on) {
  if (p.rows == 0) return;
  add_kernel<<<blocks_of(p.rows * p.width), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("add");
}

void add_silu(const AddSiluParams& p, const Execution& on) {
  if (p.count == 0) return;
  add_silu_kernel<<<blocks_of(p.count), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("add_silu");
}

void copy_slots(const CopySlotsParams& p, const Execution& on) {
  if (p.kv.kv_heads == 0) return;  // a layer with a state has no keys
  auto* kernel = p.kv.is_f32() ? copy_slots_kernel<float> : copy_slots_kernel<bf16_t>;
  kernel<<<p.kv.kv_heads, kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("copy_slots");
}

void log_sum_exp(const LogitsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  log_sum_exp_kernel<<<static_cast<unsigned>(p.rows), kLogitThreads, 0, stream_of(on)>>>(p);
  cuda_launched("log_sum_exp");
}

}  // namespace invar::cuda
