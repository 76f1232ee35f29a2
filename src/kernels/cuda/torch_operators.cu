#include "kernels/cuda/torch_operators.h"

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/elementwise.cuh"

namespace invar::cuda {

static_assert(kAttentionZeros == Parts::kMostUnits * sizeof(Progress));

namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

__device__ __forceinline__ int64_t global_index() {
  return int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

__global__ void gate_kernel(Values g, Values u, int64_t count, Nonlinearity curve, bf16_t* out) {
  const int64_t i = global_index();
  if (i >= count) return;
  out[i] = f32_to_bf16(gated(curve, value_at(g.data, g.type, i), value_at(u.data, u.type, i)));
}

__global__ void rounded_kernel(Values x, int64_t count, float* out) {
  const int64_t i = global_index();
  if (i < count) out[i] = bf16_to_f32(f32_to_bf16(value_at(x.data, x.type, i)));
}

__global__ void places_kernel(PlacesParams p) {
  const int64_t i = global_index();
  if (i < p.sequences) p.addresses[i] = p.tables + i * p.width;
  if (i >= p.rows) return;
  const int32_t sequence = p.table_of[i], position = p.starts[sequence] + p.offsets[i];
  p.positions[i] = position;
  p.write_block[i] = p.tables[sequence * p.width + position / p.block_size];
  p.write_slot[i] = position % p.block_size;
}

// A block of 64 threads, the lanes of sum64, takes a row.
__global__ void mean_kernel(const float* x, int64_t width, float* out) {
  __shared__ float lanes[64];
  const float* row = x + blockIdx.x * width;
  float lane = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += 64) lane = lane + row[i];
  lanes[threadIdx.x] = lane;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const float sum = halve64(lanes[threadIdx.x], lanes[threadIdx.x + kWarp]);
  if (threadIdx.x == 0) out[blockIdx.x] = sum / static_cast<float>(width);
}

__global__ void clear_kernel(unsigned char* first, size_t first_bytes, unsigned char* second,
                             size_t second_bytes) {
  const auto i = static_cast<size_t>(global_index()) * 16;
  const auto clear = [](unsigned char* to, size_t begin, size_t end) {
    if (begin + 16 <= end)
      *reinterpret_cast<uint4*>(to + begin) = {};
    else
      for (size_t at = begin; at < end; ++at) to[at] = 0;
  };
  clear(first, i, first_bytes);
  clear(second, i, second_bytes);
}

// One block: what it is for does not happen.
constexpr int kSpoilThreads = 1024;

__global__ void spoil_kernel(const bool* flags, int64_t rows, bf16_t* out, int64_t count) {
  bool is_bad = false;
  for (int64_t t = threadIdx.x; t < rows; t += kSpoilThreads) is_bad = is_bad || flags[t];
  if (!__syncthreads_or(is_bad)) return;
  for (int64_t i = threadIdx.x; i < count; i += kSpoilThreads) out[i] = 0x7fff;
}

__global__ void gate_gradients_kernel(GateGradients p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.count) return;
  const float g = p.g[i];
  const bool is_gelu = p.curve == Nonlinearity::gelu_tanh;
  const float z = is_gelu ? math::gelu_exponent(g) : g;
  const float step = is_gelu ? g * math::gelu_exponent_slope(g) : g;
  const float below = 1.0f + math::exp(-z), s = 1.0f / below;
  p.dg[i] = (p.d[i] * p.u[i]) * (s * __fmaf_rn(step, 1.0f - s, 1.0f));
  p.du[i] = p.d[i] * (g / below);
}

}  // namespace

void gate(const Values& g, const Values& u, int64_t count, Nonlinearity curve, bf16_t* out,
          const Execution& on) {
  if (count == 0) return;
  gate_kernel<<<blocks_for(count), kThreads, 0, stream_of(on)>>>(g, u, count, curve, out);
  cuda_launched("gate");
}

void gate_gradients(const GateGradients& p, const Execution& on) {
  if (p.count == 0) return;
  gate_gradients_kernel<<<blocks_for(p.count), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("a gate's backward");
}

void rounded(const Values& x, int64_t count, float* out, const Execution& on) {
  if (count == 0) return;
  rounded_kernel<<<blocks_for(count), kThreads, 0, stream_of(on)>>>(x, count, out);
  cuda_launched("rounding");
}

void place_rows(const PlacesParams& p, const Execution& on) {
  places_kernel<<<blocks_for(p.rows < p.sequences ? p.sequences : p.rows), kThreads, 0,
                  stream_of(on)>>>(p);
  cuda_launched("placing rows");
}

void mean(const float* x, int64_t rows, int64_t width, float* out, const Execution& on) {
  if (rows == 0) return;
  mean_kernel<<<static_cast<unsigned>(rows), 64, 0, stream_of(on)>>>(x, width, out);
  cuda_launched("mean");
}

void spoil(const bool* flags, int64_t rows, bf16_t* out, int64_t count, const Execution& on) {
  spoil_kernel<<<1, kSpoilThreads, 0, stream_of(on)>>>(flags, rows, out, count);
  cuda_launched("looking for what is not finite");
}

void clear_and_wait(void* first, size_t first_bytes, void* second, size_t second_bytes,
                    const Execution& on) {
  const size_t most = first_bytes < second_bytes ? second_bytes : first_bytes;
  const unsigned blocks = blocks_for(static_cast<int64_t>((most + 15) / 16));
  clear_kernel<<<blocks ? blocks : 1, kThreads, 0, stream_of(on)>>>(
      static_cast<unsigned char*>(first), first_bytes, static_cast<unsigned char*>(second),
      second_bytes);
  cuda_launched("clearing");
}

}  // namespace invar::cuda
