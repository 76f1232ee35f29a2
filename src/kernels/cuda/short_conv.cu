// Short convolutions: kernels/reference/recurrent_rows.cc on a GPU. Sums have their own order, so
// the kernels are those of every order. Where channels are multiples of 32 a thread has four of
// them, and goes through several rows with what it has read.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/aligned.h"
#include "kernels/cuda/early_grid.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/recurrent.h"

namespace invar::cuda {

namespace {

constexpr int kRowsOfThread = 16, kKeptOfThread = 4;  // of steps with many rows
constexpr int64_t kManyRows = 512;

__device__ float kept(DType type, float x) {
  return type == DType::f32 ? f32_to_cached_f32(x) : bf16_to_f32(f32_to_cached_bf16(x));
}
// Puts a number that is kept already.
__device__ void put(void* of, DType type, int64_t i, float x) {
  if (type == DType::f32)
    static_cast<float*>(of)[i] = x;
  else
    static_cast<bf16_t*>(of)[i] = f32_to_bf16(x);
}

// ---- A channel of a row

__global__ __launch_bounds__(kThreads) void keep_inputs_kernel(
    const __grid_constant__ ShortConvParams p) {
  take_turn();
  const int64_t i = thread_of_grid(), t = i / p.channels, c = i % p.channels;
  if (t >= p.places.rows) return;
  float x = p.x[t * p.x_stride + c];
  if (p.factor) x = x * p.factor[t * p.factor_stride + c];
  if (!isfinite(x)) p.non_finite[t] = true;
  for (int w = p.places.write_begin[t]; w < p.places.write_begin[t + 1]; ++w)
    put(p.inputs.at<char>(p.places.write_cell[w]), p.type, p.places.slot(t) * p.channels + c,
        kept(p.type, x));
}

__global__ __launch_bounds__(kThreads) void convolve_kernel(
    const __grid_constant__ ShortConvParams p) {
  take_turn();
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

// Rows overwrite here what the kernel before reads. A block has some channels of 64 rows, one of
// which ends a chunk where they are a long run.
__global__ __launch_bounds__(kThreads) void leave_inputs_kernel(
    const __grid_constant__ ShortConvParams p, int blocks_of_rows) {
  __shared__ bool leaves[kChunkSlots];
  take_turn();
  const int64_t first = blockIdx.x / static_cast<uint32_t>(blocks_of_rows) * kChunkSlots;
  const int64_t c = blockIdx.x % static_cast<uint32_t>(blocks_of_rows) * kThreads + threadIdx.x;
  const int64_t own = first + threadIdx.x;
  const bool is_one = threadIdx.x < kChunkSlots && own < p.places.rows && p.leaves_inputs(own);
  if (threadIdx.x < kChunkSlots) leaves[threadIdx.x] = is_one;
  if (!__syncthreads_or(is_one) || c >= p.channels) return;
  for (int n = 0; n < kChunkSlots; ++n) {
    if (!leaves[n]) continue;
    const int64_t t = first + n, from = p.places.positions[t] - (p.taps - 2);
    for (int j = 0; j < p.taps - 1; ++j)
      put(p.before.at<char>(p.next_state[t]), p.type, j * p.channels + c,
          value_at(p.inputs_of(t, from + j), p.type, c));
  }
}

// ---- Four channels

using Four = float4;

__device__ Four load_four(const void* of, DType type, int64_t i) {
  if (type == DType::f32)
    return *reinterpret_cast<const float4*>(static_cast<const float*>(of) + i);
  const uint2 two = *reinterpret_cast<const uint2*>(static_cast<const bf16_t*>(of) + i);
  return {__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xffff0000),
          __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xffff0000)};
}
__device__ void store_four(void* of, DType type, int64_t i, const Four& x) {
  if (type == DType::f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(of) + i) = x;
    return;
  }
  const auto pair = [](float low, float high) {
    return f32_to_bf16(low) | static_cast<uint32_t>(f32_to_bf16(high)) << 16;
  };
  *reinterpret_cast<uint2*>(static_cast<bf16_t*>(of) + i) = {pair(x.x, x.y), pair(x.z, x.w)};
}
template <typename Use>
__device__ __forceinline__ Four each(const Use& use) {
  return {use(&Four::x), use(&Four::y), use(&Four::z), use(&Four::w)};
}

// A row's input, which is not kept yet.
__device__ Four input_of(const ShortConvParams& p, int64_t t, int64_t c) {
  const Four x = load_four(p.x + t * p.x_stride, DType::f32, c);
  if (!p.factor) return x;
  const Four f = load_four(p.factor + t * p.factor_stride, DType::f32, c);
  return each([&](auto of) { return x.*of * f.*of; });
}
// As it is kept, in the row's cells, which are those of the list from `begin` on.
__device__ Four keep_four(const ShortConvParams& p, int64_t t, int64_t c, const Four& input,
                          int begin, int end) {
  if (!(isfinite(input.x) && isfinite(input.y) && isfinite(input.z) && isfinite(input.w)))
    p.non_finite[t] = true;
  const Four x = each([&](auto of) { return kept(p.type, input.*of); });
  for (int w = begin; w < end; ++w)
    store_four(p.inputs.at<char>(p.places.write_cell[w]), p.type, p.places.slot(t) * p.channels + c,
               x);
  return x;
}

// A thread asks for several rows' inputs at once.
template <int kRows>
__global__ __launch_bounds__(kThreads) void keep_fours_kernel(
    const __grid_constant__ ShortConvParams p) {
  const FourOfRow at(p.channels);
  take_turn();
  if (at.first >= p.channels) return;
  Four inputs[kRows];
  int begins[kRows + 1];
#pragma unroll
  for (int n = 0; n <= kRows; ++n) {
    const int64_t t = at.t * kRows + n;
    if (t <= p.places.rows) begins[n] = p.places.write_begin[t];
    if (n < kRows && t < p.places.rows) inputs[n] = input_of(p, t, at.first);
  }
#pragma unroll
  for (int n = 0; n < kRows; ++n)
    if (const int64_t t = at.t * kRows + n; t < p.places.rows)
      keep_four(p, t, at.first, inputs[n], begins[n], begins[n + 1]);
}

// Goes through rows with the inputs of the last kTaps positions.
template <int kTaps>
class Window {
 public:
  __device__ Window(const ShortConvParams& p, int64_t c) : p_(p), c_(c) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j)
      weight_[j] = load_four(p.weight + j * p.channels, DType::f32, c);
    if (p.bias) bias_ = load_four(p.bias, DType::f32, c);
  }

  // The positions before row t's, unless that follows the row before.
  __device__ void move_to(int64_t t) {
    const int32_t position = p_.places.positions[t], table = p_.places.table_of[t];
    const bool follows = position == position_ + 1 && table == table_;
    position_ = position, table_ = table;
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) {
      if (follows) {
        x_[j] = x_[j + 1];
        continue;
      }
      const char* inputs = p_.inputs_of(t, position - (kTaps - 1 - j));
      x_[j] = inputs ? load_four(inputs, p_.type, c_) : Four{};
    }
  }
  __device__ void set(const Four& x) {
    x_[kTaps - 1] = x;
  }
  __device__ void load(int64_t t) {
    set(load_four(p_.inputs_of(t, position_), p_.type, c_));
  }

  __device__ void convolve(int64_t t) const {
    Four y{};
#pragma unroll
    for (int j = 0; j < kTaps; ++j)
      y = each([&](auto of) { return __fmaf_rn(weight_[j].*of, x_[j].*of, y.*of); });
    if (p_.bias) y = each([&](auto of) { return y.*of + bias_.*of; });
    if (p_.silu) {
      const bool is_tame =
          is_tame_gate(y.x) && is_tame_gate(y.y) && is_tame_gate(y.z) && is_tame_gate(y.w);
      y = is_tame ? each([&](auto of) { return silu_of_tame(y.*of); })
                  : each([&](auto of) { return math::silu(y.*of); });
    }
    if (p_.gate) {
      const Four gate = load_four(p_.gate + t * p_.gate_stride, DType::f32, c_);
      y = each([&](auto of) { return y.*of * gate.*of; });
    }
    store_four(p_.out.data, p_.out.type, t * p_.out.stride + c_, y);
  }
  // Leaves beside the next state what the next chunk's first rows look back to.
  __device__ void leave(int64_t t) const {
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j)
      store_four(p_.before.at<char>(p_.next_state[t]), p_.type, j * p_.channels + c_, x_[j + 1]);
  }

 private:
  const ShortConvParams& p_;
  const int64_t c_;
  int32_t position_ = -2, table_ = -1;
  Four weight_[kTaps], bias_{}, x_[kTaps];
};

template <int kTaps>
__global__ __launch_bounds__(kThreads) void convolve_fours_kernel(
    const __grid_constant__ ShortConvParams p, int rows_of_thread) {
  const FourOfRow at(p.channels);
  let_next_kernel_start();
  if (at.first >= p.channels) return;
  Window<kTaps> window(p, at.first);
  wait_for_kernels_before();
  const int64_t first = at.t * rows_of_thread, last = first + rows_of_thread;
  for (int64_t t = first; t < last && t < p.places.rows; ++t) {
    window.move_to(t);
    window.load(t);
    window.convolve(t);
  }
}

// One kernel does it all where no row sees another one of the step.
template <int kTaps>
__global__ __launch_bounds__(kThreads) void convolve_alone_kernel(
    const __grid_constant__ ShortConvParams p) {
  const FourOfRow at(p.channels);
  let_next_kernel_start();
  if (at.first >= p.channels) return;
  Window<kTaps> window(p, at.first);
  wait_for_kernels_before();
  window.move_to(at.t);
  window.set(keep_four(p, at.t, at.first, input_of(p, at.t, at.first), p.places.write_begin[at.t],
                       p.places.write_begin[at.t + 1]));
  window.convolve(at.t);
  if (p.leaves_inputs(at.t)) window.leave(at.t);
}

void leave_inputs(const ShortConvParams& p, const Execution& on) {
  const int blocks = blocks_of(p.channels);
  launch("leaving a convolution's inputs", leave_inputs_kernel,
         early_grid(blocks_of(p.places.rows, kChunkSlots) * blocks), on, p, blocks);
}

bool has_fours(const ShortConvParams& p) {
  return p.channels % kLeafPad == 0 && p.x_stride % 4 == 0 && p.factor_stride % 4 == 0 &&
         p.gate_stride % 4 == 0 && p.out.stride % 4 == 0 && p.taps >= 2 && p.taps <= 4 &&
         are_aligned(16, p.x, p.factor, p.weight, p.bias, p.gate, p.out.data);
}

template <int kTaps>
void convolve_fours(const ShortConvParams& p, const Execution& on) {
  const int64_t rows = p.places.rows;
  if (rows == p.sequences) {
    launch("a short convolution", convolve_alone_kernel<kTaps>,
           early_grid(fours_of(rows, p.channels)), on, p);
    return;
  }
  const bool is_many = rows >= kManyRows;
  const int kept_at_once = is_many ? kKeptOfThread : 1, each = is_many ? kRowsOfThread : 1;
  launch("keeping a convolution's inputs",
         is_many ? keep_fours_kernel<kKeptOfThread> : keep_fours_kernel<1>,
         early_grid(fours_of((rows + kept_at_once - 1) / kept_at_once, p.channels)), on, p);
  launch("a short convolution", convolve_fours_kernel<kTaps>,
         early_grid(fours_of((rows + each - 1) / each, p.channels)), on, p, each);
  leave_inputs(p, on);
}

}  // namespace

void short_conv(const ShortConvParams& p, const Execution& on) {
  const int64_t rows = p.places.rows;
  if (rows == 0) return;
  if (has_fours(p)) {
    if (p.taps == 2) return convolve_fours<2>(p, on);
    if (p.taps == 3) return convolve_fours<3>(p, on);
    return convolve_fours<4>(p, on);
  }
  launch("keeping a convolution's inputs", keep_inputs_kernel,
         early_grid(blocks_of(rows * p.channels)), on, p);
  launch("a short convolution", convolve_kernel,
         early_grid(blocks_of(rows * round_up(p.channels, kLeafPad))), on, p);
  leave_inputs(p, on);
}

}  // namespace invar::cuda
