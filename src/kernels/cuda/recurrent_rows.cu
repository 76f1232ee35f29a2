// What stands around recurrences: kernels/reference/recurrent_rows.cc on a GPU. Sums have their own
// order, so the kernels are those of every order.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/aligned.h"
#include "kernels/cuda/early_grid.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/recurrent.h"
#include "numerics/curves.h"

namespace invar::cuda {

namespace {

__device__ void put(void* of, DType type, int64_t i, float x) {
  store({of, type, 0}, i, x);
}
__device__ void keep(void* of, DType type, int64_t i, float x) {
  if (type == DType::f32)
    static_cast<float*>(of)[i] = f32_to_cached_f32(x);
  else
    static_cast<bf16_t*>(of)[i] = f32_to_cached_bf16(x);
}
__device__ float logistic(float x) {
  return 1.0f / (1.0f + math::exp(-x));
}

// Thread i has 16 bytes of a copy.
__global__ __launch_bounds__(kThreads) void copy_cells_kernel(
    const __grid_constant__ CopyCellsParams p) {
  const int64_t pieces = p.cells.bytes / 16, i = thread_of_grid();
  if (i >= p.num_copies * pieces) return;
  const CellCopy copy = p.copies[i / pieces];
  p.cells.at<uint4>(copy.to)[i % pieces] = p.cells.at<uint4>(copy.from)[i % pieces];
}

__global__ __launch_bounds__(kThreads) void gates_kernel(
    const __grid_constant__ RecurrentGatesParams p) {
  take_turn();
  const int64_t width = p.heads * p.channels;
  const int64_t at = thread_of_grid(), t = at / width, i = at % width, h = i / p.channels;
  if (t >= p.rows) return;
  float step = math::softplus(p.a[t * p.a_stride + i] + p.bias[i]);
  float& factor = p.factors[t * p.heads + h];
  if (p.kind == Recurrence::state_space) {
    step = step < p.least ? p.least : step > p.most ? p.most : step;
    factor = step;
  } else if (i % p.channels == 0) {
    const float b = logistic(p.z[t * p.z_stride + h]);
    factor = p.doubles ? b + b : b;
  }
  p.decays[at] = step * -math::exp(p.log_rate[h]);
}

// 1 / sqrt(sum64 of squares (by the warp) / divisor + eps).
template <typename At>
__device__ float inverse_root(int64_t width, float divisor, float eps, const At& at) {
  float lanes[2] = {};
  for (int64_t i = threadIdx.x % kWarp, half = 0; i < width; i += kWarp, half ^= 1) {
    const float x = at(i);
    lanes[half] = __fmaf_rn(x, x, lanes[half]);
  }
  const float sum = __shfl_sync(kAllLanes, halve64(lanes[0], lanes[1]), 0);
  return 1.0f / math::sqrt((divisor > 0 ? sum / divisor : sum) + eps);
}

// A warp's vector of up to kMostStateSize elements, asked for at once; zeros behind it.
struct WarpVector {
  static constexpr int kEach = kMostStateSize / kWarp;
  float x[kEach];

  __device__ WarpVector(const float* from, int64_t width) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int n = 0; n < kEach; ++n) x[n] = n * kWarp + lane < width ? from[n * kWarp + lane] : 0.0f;
  }
  // Zeros behind it leave sums as they are: they are no -0.
  __device__ float inverse_root(float divisor, float eps) const {
    float lanes[2] = {};
#pragma unroll
    for (int n = 0; n < kEach; ++n) lanes[n % 2] = __fmaf_rn(x[n], x[n], lanes[n % 2]);
    const float sum = __shfl_sync(kAllLanes, halve64(lanes[0], lanes[1]), 0);
    return 1.0f / math::sqrt((divisor > 0 ? sum / divisor : sum) + eps);
  }
};

// A warp's vector of 128 elements, a lane's four side by side.
struct WarpFours {
  static constexpr int kWidth = 4 * kWarp;
  float x[kFour];

  __device__ explicit WarpFours(const float* from) {
    load_four(from + threadIdx.x % kWarp * kFour, x);
  }
  // Elements i and i + 64 are those of lanes 16 apart.
  __device__ float inverse_root(float divisor, float eps) const {
    float s[kFour];
#pragma unroll
    for (int c = 0; c < kFour; ++c) {
      const float later = __shfl_down_sync(kAllLanes, x[c], 16);
      s[c] = __fmaf_rn(later, later, __fmaf_rn(x[c], x[c], 0.0f));
    }
#pragma unroll
    for (int apart = 8; apart > 0; apart /= 2)
#pragma unroll
      for (int c = 0; c < kFour; ++c) s[c] = s[c] + __shfl_down_sync(kAllLanes, s[c], apart);
    const float sum = __shfl_sync(kAllLanes, (s[0] + s[2]) + (s[1] + s[3]), 0);
    return 1.0f / math::sqrt((divisor > 0 ? sum / divisor : sum) + eps);
  }
};

// Rows in each of which warps have so many things: blocks for them, and a warp's row and thing,
// which may stand behind the row.
int warps_of(int64_t rows, int64_t things) {
  return static_cast<int>(rows) * blocks_of(things, kWarps);
}
struct WarpOfRow {
  int64_t t;
  int thing;
  __device__ explicit WarpOfRow(int things) {
    const uint32_t blocks = static_cast<uint32_t>(things + kWarps - 1) / kWarps;
    t = blockIdx.x / blocks;
    thing = static_cast<int>(blockIdx.x % blocks * kWarps + threadIdx.x / kWarp);
  }
};

// A warp has a head of a row, of queries or of keys.
__global__ __launch_bounds__(kThreads) void keys_kernel(
    const __grid_constant__ RecurrentKeysParams p) {
  take_turn();
  const RecurrentLayer& layer = p.layer;
  const WarpOfRow own(2 * layer.key_heads);
  if (own.thing >= 2 * layer.key_heads) return;
  const int64_t t = own.t, head = own.thing / 2;
  const bool is_key = own.thing % 2;
  const int begin = is_key ? p.places.write_begin[t] : 0;
  const int end = is_key ? p.places.write_begin[t + 1] : 0;
  WarpVector y((is_key ? p.keys : p.queries) + t * p.stride + head * layer.key_size,
               layer.key_size);
  if (p.normalises) {
    const float rs = y.inverse_root(0, p.eps), scale = is_key ? 1.0f : p.scale;
#pragma unroll
    for (float& x : y.x) x = (x * rs) * scale;
  }
  const int64_t at = (t * layer.key_heads + head) * layer.padded_key();
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < WarpVector::kEach; ++n) {
    const int d = n * kWarp + lane;
    if (d >= layer.padded_key()) break;
    if (is_key)
      keep(p.k, layer.type, at + d, y.x[n]);
    else
      put(p.q, layer.type, at + d, y.x[n]);
    if (is_key && !isfinite(y.x[n])) p.non_finite[t] = true;
  }
  for (int w = begin; w < end; ++w) {
    char* cell = layer.keys.at<char>(p.places.write_cell[w]);
    const int slot = p.places.slot(t);
#pragma unroll
    for (int n = 0; n < WarpVector::kEach; ++n)
      if (const int d = n * kWarp + lane; d < layer.key_size)
        keep(cell, layer.type, head * layer.key_elements() + layer.key_index(slot, d), y.x[n]);
  }
}

// The same of heads of 128 elements in rows of bf16.
__global__ __launch_bounds__(kThreads) void key_fours_kernel(
    const __grid_constant__ RecurrentKeysParams p) {
  take_turn();
  const RecurrentLayer& layer = p.layer;
  const WarpOfRow own(2 * layer.key_heads);
  if (own.thing >= 2 * layer.key_heads) return;
  const int64_t t = own.t, head = own.thing / 2, at = (t * layer.key_heads + head) * layer.key_size;
  const bool is_key = own.thing % 2;
  const int begin = is_key ? p.places.write_begin[t] : 0;
  const int end = is_key ? p.places.write_begin[t + 1] : 0;
  WarpFours y((is_key ? p.keys : p.queries) + t * p.stride + head * layer.key_size);
  if (p.normalises) {
    const float rs = y.inverse_root(0, p.eps), scale = is_key ? 1.0f : p.scale;
#pragma unroll
    for (float& x : y.x) x = (x * rs) * scale;
  }
  const int first = threadIdx.x % kWarp * kFour;
  if (!is_key) return store_four(static_cast<bf16_t*>(p.q) + at + first, y.x);
  bool is_finite = true;
#pragma unroll
  for (float& x : y.x) {
    is_finite = is_finite && isfinite(x);
    x = bf16_to_f32(f32_to_cached_bf16(x));
  }
  if (!is_finite) p.non_finite[t] = true;
  store_four(static_cast<bf16_t*>(p.k) + at + first, y.x);
  for (int w = begin; w < end; ++w)
    store_four(layer.keys.at<bf16_t>(p.places.write_cell[w]) + head * layer.key_elements() +
                   layer.key_index(p.places.slot(t), first),
               y.x);
}
bool are_key_fours(const RecurrentKeysParams& p) {
  return p.layer.key_size == WarpFours::kWidth && p.layer.type == DType::bf16 &&
         p.layer.layout == CacheLayout::rows && p.stride % kFour == 0 &&
         are_aligned(16, p.queries, p.keys);
}

__device__ float gate_of(const GatedNormParams& p, float z) {
  if (p.is_sigmoid) return logistic(z);
  return is_tame_gate(z) ? silu_of_tame(z) : math::silu(z);
}

// A warp has a group of a row.
__global__ __launch_bounds__(kThreads) void gated_norm_kernel(
    const __grid_constant__ GatedNormParams p) {
  take_turn();
  const WarpOfRow own(static_cast<int>(p.groups));
  if (own.thing >= p.groups) return;
  const int64_t t = own.t, group = own.thing;
  const float* x = p.x + t * p.x_stride + group * p.width;
  const float* z = p.gate ? p.gate + t * p.gate_stride + group * p.width : nullptr;
  const auto gate = [&](int64_t i) { return gate_of(p, z[i]); };
  const auto at = [&](int64_t i) { return z && p.gate_first ? x[i] * gate(i) : x[i]; };
  const float rs = p.weight ? inverse_root(p.width, static_cast<float>(p.width), p.eps, at) : 0.0f;
  const int64_t first = t * p.out.stride, all = p.groups * p.width;
  for (int64_t i = threadIdx.x % kWarp; i < p.width; i += kWarp) {
    float y = at(i);
    if (p.weight) y = (y * rs) * p.weight[(p.own_weights ? group * p.width : 0) + i];
    if (z && !p.gate_first) y = y * gate(i);
    store(p.out, first + group * p.width + i, y);
  }
  for (int64_t i = all + threadIdx.x % kWarp; group == 0 && i < round_up(all, kLeafPad); i += kWarp)
    store(p.out, first + i, 0.0f);
}

// The same of groups whose norm is before their gates, and whose elements a warp has at once.
__global__ __launch_bounds__(kThreads) void gated_vector_kernel(
    const __grid_constant__ GatedNormParams p) {
  take_turn();
  const WarpOfRow own(static_cast<int>(p.groups));
  if (own.thing >= p.groups) return;
  const int64_t t = own.t, group = own.thing, first = group * p.width;
  const WarpVector x(p.x + t * p.x_stride + first, p.width);
  const WarpVector z(p.gate + t * p.gate_stride + first, p.width);
  const WarpVector w(p.weight + (p.own_weights ? first : 0), p.width);
  const float rs = x.inverse_root(static_cast<float>(p.width), p.eps);
#pragma unroll
  for (int n = 0; n < WarpVector::kEach; ++n) {
    const int i = n * kWarp + static_cast<int>(threadIdx.x) % kWarp;
    if (i >= p.width) break;
    const float y = (x.x[n] * rs) * w.x[n];
    store(p.out, t * p.out.stride + first + i, y * gate_of(p, z.x[n]));
  }
}
// Groups are of 128 elements, which become bf16.
__global__ __launch_bounds__(kThreads) void gated_fours_kernel(
    const __grid_constant__ GatedNormParams p) {
  take_turn();
  const WarpOfRow own(static_cast<int>(p.groups));
  if (own.thing >= p.groups) return;
  const int64_t t = own.t, first = own.thing * p.width;
  WarpFours y(p.x + t * p.x_stride + first);
  const WarpFours z(p.gate + t * p.gate_stride + first);
  const WarpFours w(p.weight + (p.own_weights ? first : 0));
  const float rs = y.inverse_root(static_cast<float>(p.width), p.eps);
#pragma unroll
  for (int c = 0; c < kFour; ++c) y.x[c] = ((y.x[c] * rs) * w.x[c]) * gate_of(p, z.x[c]);
  store_four(
      static_cast<bf16_t*>(p.out.data) + t * p.out.stride + first + threadIdx.x % kWarp * kFour,
      y.x);
}
bool are_gated_fours(const GatedNormParams& p) {
  return p.width == WarpFours::kWidth && p.out.type == DType::bf16 && p.x_stride % kFour == 0 &&
         p.gate_stride % kFour == 0 && p.out.stride % kFour == 0 &&
         are_aligned(16, p.x, p.gate, p.weight, p.out.data);
}
bool is_gated_vector(const GatedNormParams& p) {
  return p.weight && p.gate && !p.gate_first && p.width <= kMostStateSize &&
         p.groups * p.width % kLeafPad == 0;
}

}  // namespace

void copy_cells(const CopyCellsParams& p, const Execution& on) {
  if (p.num_copies == 0) return;
  launch("copying cells", copy_cells_kernel,
         {blocks_of(p.num_copies * p.cells.bytes / 16), kThreads, 0}, on, p);
}
void recurrent_gates(const RecurrentGatesParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("decays of recurrent layers", gates_kernel,
         early_grid(blocks_of(p.rows * p.heads * p.channels)), on, p);
}
void recurrent_keys(const RecurrentKeysParams& p, const Execution& on) {
  if (p.places.rows == 0) return;
  launch("keys of recurrent layers", are_key_fours(p) ? key_fours_kernel : keys_kernel,
         early_grid(warps_of(p.places.rows, 2 * p.layer.key_heads)), on, p);
}
void gated_norm(const GatedNormParams& p, const Execution& on) {
  if (p.rows == 0) return;
  const auto kernel = !is_gated_vector(p)  ? gated_norm_kernel
                      : are_gated_fours(p) ? gated_fours_kernel
                                           : gated_vector_kernel;
  launch("a gated norm", kernel, early_grid(warps_of(p.rows, p.groups)), on, p);
}

}  // namespace invar::cuda
