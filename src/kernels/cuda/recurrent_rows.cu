// What stands around recurrences: kernels/reference/recurrent_rows.cc on a GPU. Sums have their own
// order, so the kernels are those of every order.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/tma.cuh"
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

__global__ __launch_bounds__(kThreads) void keep_inputs_kernel(
    const __grid_constant__ ShortConvParams p) {
  const int64_t i = thread_of_grid(), t = i / p.channels, c = i % p.channels;
  if (t >= p.places.rows) return;
  float x = p.x[t * p.x_stride + c];
  if (p.factor) x = x * p.factor[t * p.factor_stride + c];
  if (!isfinite(x)) p.non_finite[t] = true;
  for (int w = p.places.write_begin[t]; w < p.places.write_begin[t + 1]; ++w)
    keep(p.inputs.at<char>(p.places.write_cell[w]), p.type, p.places.slot(t) * p.channels + c, x);
}

__global__ __launch_bounds__(kThreads) void convolve_kernel(
    const __grid_constant__ ShortConvParams p) {
  const int64_t width = round_up(p.channels, kLeafPad);
  const int64_t i = thread_of_grid(), t = i / width, c = i % width;
  if (t >= p.places.rows) return;
  float y = 0.0f;
  for (int j = 0; j < p.taps && c < p.channels; ++j) {
    const char* inputs = p.inputs_of(t, p.places.positions[t] - (p.taps - 1 - j));
    const float x = inputs ? value_at(inputs, p.type, c) : 0.0f;
    y = __fmaf_rn(p.weight[j * p.channels + c], x, y);
  }
  if (c < p.channels) {
    if (p.bias) y = y + p.bias[c];
    if (p.silu) y = math::silu(y);
    if (p.gate) y = y * p.gate[t * p.gate_stride + c];
  }
  store(p.out, t * p.out.stride + c, y);
}

// Behind the kernel before, which reads what rows here overwrite.
__global__ __launch_bounds__(kThreads) void leave_inputs_kernel(
    const __grid_constant__ ShortConvParams p) {
  const int64_t i = thread_of_grid(), t = i / p.channels, c = i % p.channels;
  if (t >= p.places.rows || !p.leaves_inputs(t)) return;
  const int64_t first = p.places.positions[t] - (p.taps - 2);
  for (int j = 0; j < p.taps - 1; ++j)
    put(p.before.at<char>(p.next_state[t]), p.type, j * p.channels + c,
        value_at(p.inputs_of(t, first + j), p.type, c));
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

// A warp has a head of a row, of queries or of keys.
__global__ __launch_bounds__(kThreads) void keys_kernel(
    const __grid_constant__ RecurrentKeysParams p) {
  const RecurrentLayer& layer = p.layer;
  const int64_t warp = warp_of_grid(), head = warp / 2 % layer.key_heads;
  const int64_t t = warp / 2 / layer.key_heads;
  const bool is_key = warp % 2;
  if (t >= p.places.rows) return;
  const float* x = (is_key ? p.keys : p.queries) + t * p.stride + head * layer.key_size;
  const float rs =
      p.normalises ? inverse_root(layer.key_size, 0, p.eps, [&](int64_t i) { return x[i]; }) : 0;
  const int64_t at = (t * layer.key_heads + head) * layer.padded_key();
  for (int64_t d = threadIdx.x % kWarp; d < layer.padded_key(); d += kWarp) {
    float y = d < layer.key_size ? x[d] : 0.0f;
    if (p.normalises && d < layer.key_size) y = (y * rs) * (is_key ? 1.0f : p.scale);
    if (!is_key) {
      put(p.q, layer.type, at + d, y);
      continue;
    }
    if (!isfinite(y)) p.non_finite[t] = true;
    keep(p.k, layer.type, at + d, y);
    for (int w = p.places.write_begin[t]; d < layer.key_size && w < p.places.write_begin[t + 1];
         ++w)
      keep(layer.keys.at<char>(p.places.write_cell[w]), layer.type,
           head * layer.key_elements() + layer.key_index(p.places.slot(t), d), y);
  }
}

// A warp has a group of a row.
__global__ __launch_bounds__(kThreads) void gated_norm_kernel(
    const __grid_constant__ GatedNormParams p) {
  const int64_t warp = warp_of_grid(), t = warp / p.groups, group = warp % p.groups;
  if (t >= p.rows) return;
  const float* x = p.x + t * p.x_stride + group * p.width;
  const float* z = p.gate ? p.gate + t * p.gate_stride + group * p.width : nullptr;
  const auto gate = [&](int64_t i) { return p.is_sigmoid ? logistic(z[i]) : math::silu(z[i]); };
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

}  // namespace

void copy_cells(const CopyCellsParams& p, const Execution& on) {
  if (p.num_copies == 0) return;
  launch("copying cells", copy_cells_kernel,
         {blocks_of(p.num_copies * p.cells.bytes / 16), kThreads, 0}, on, p);
}
void short_conv(const ShortConvParams& p, const Execution& on) {
  if (p.places.rows == 0) return;
  const int64_t width = round_up(p.channels, kLeafPad);
  launch("keeping a convolution's inputs", keep_inputs_kernel,
         {blocks_of(p.places.rows * p.channels), kThreads, 0}, on, p);
  launch("a short convolution", convolve_kernel, {blocks_of(p.places.rows * width), kThreads, 0},
         on, p);
  launch("leaving a convolution's inputs", leave_inputs_kernel,
         {blocks_of(p.places.rows * p.channels), kThreads, 0}, on, p);
}
void recurrent_gates(const RecurrentGatesParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("decays of recurrent layers", gates_kernel,
         {blocks_of(p.rows * p.heads * p.channels), kThreads, 0}, on, p);
}
void recurrent_keys(const RecurrentKeysParams& p, const Execution& on) {
  if (p.places.rows == 0) return;
  launch("keys of recurrent layers", keys_kernel,
         {blocks_of(p.places.rows * p.layer.key_heads * 2 * kWarp), kThreads, 0}, on, p);
}
void gated_norm(const GatedNormParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("a gated norm", gated_norm_kernel, {blocks_of(p.rows * p.groups * kWarp), kThreads, 0}, on,
         p);
}

}  // namespace invar::cuda
