// The operations that cuBLAS leaves to another kernel.
#include "cuda_timer.h"
#include "device/cuda/cuda_check.h"
#include "numerics/dtype.h"

namespace invar::bench {

namespace {

__global__ void gate_kernel(const bf16_t* products, bf16_t* out, int64_t rows, int64_t width) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i * 2 >= rows * width) return;
  const int64_t row = i * 2 / width, column = i * 2 % width;
  const auto pair = [&](int64_t at) {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(products + row * 2 * width + at);
    return float2{__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000)};
  };
  const float2 gate = pair(column), up = pair(width + column);
  const auto silu = [](float g) { return g / (1.0f + __expf(-g)); };
  out[i * 2] = f32_to_bf16(silu(gate.x) * up.x);
  out[i * 2 + 1] = f32_to_bf16(silu(gate.y) * up.y);
}

}  // namespace

void gate(const void* products, void* out, int64_t rows, int64_t width, cudaStream_t stream) {
  gate_kernel<<<static_cast<unsigned>((rows * width / 2 + 255) / 256), 256, 0, stream>>>(
      static_cast<const bf16_t*>(products), static_cast<bf16_t*>(out), rows, width);
  cuda_launched("the gated activation");
}

}  // namespace invar::bench
