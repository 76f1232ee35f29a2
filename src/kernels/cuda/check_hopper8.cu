// This GPU's tensor cores against the recorded ones, of e4m3 numbers.
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma_e4m3.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 128;

// Rows of 32 numbers as the beginnings of rows of 128 bytes, chunks of 16 where TMA puts them.
__device__ void place(unsigned char* to, const uint8_t* from, int rows) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * 2; i += kThreads) {
    const int row = i / 2, chunk = i % 2;
    *reinterpret_cast<uint4*>(to + row * 128 + (chunk ^ row % 8) * 16) =
        reinterpret_cast<const uint4*>(from)[i];
  }
}

// One warpgroup a case.
__global__ void check_kernel(const RecordedSteps8* cases, unsigned* different) {
  __shared__ __align__(1024) unsigned char a[64 * 128], b[8 * 128];
  const RecordedSteps8& steps = cases[blockIdx.x];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  place(a, steps.a[0], 64);
  place(b, steps.b[0], 8);
  stores_are_seen();
  __syncthreads();
  const auto row = [&](int v) { return warp * 16 + lane / 4 + v / 2 * 8; };
  const auto column = [&](int v) { return lane % 4 * 2 + v % 2; };
  float d[4];
  for (int v = 0; v < 4; ++v) d[v] = __uint_as_float(steps.c[row(v)][column(v)]);
  steps_begin();
  e4m3_step<8>(d, describe_rows(shared_address(a)), describe_rows(shared_address(b)), 1);
  steps_commit();
  steps_wait<0>();
  for (int v = 0; v < 4; ++v)
    if (__float_as_uint(d[v]) != steps.d[row(v)][column(v)]) atomicAdd(different, 1);
}

}  // namespace

void count_differing_steps(const RecordedSteps8* cases, size_t count, unsigned* different,
                           const Execution& on) {
  check_kernel<<<static_cast<unsigned>(count), kThreads, 0, stream_of(on)>>>(cases, different);
  cuda_launched("checking its tensor cores");
}

}  // namespace invar::cuda
