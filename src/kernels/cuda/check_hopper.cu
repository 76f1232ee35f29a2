// This GPU's tensor cores against the recorded ones.
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/hopper_sample.h"
#include "kernels/cuda/mma.cuh"

namespace invar::cuda {

namespace {

// One warp per case and 16 rows of a.
__global__ void check_kernel(const RecordedSteps* cases, unsigned* different) {
  const RecordedSteps& steps = cases[blockIdx.x];
  const int lane = threadIdx.x, i = lane / 4, j = lane % 4, m = blockIdx.y * 16 + 2 * i;
  const auto pair = [](const uint16_t* row, int at) {
    return reinterpret_cast<const uint32_t*>(row)[at];
  };
  const StepOutputs a = {{pair(steps.a[m], j), pair(steps.a[m + 1], j), pair(steps.a[m], j + 4),
                          pair(steps.a[m + 1], j + 4)}};
  const StepRows b = {{pair(steps.b[i], j), pair(steps.b[i], j + 4)}};
  float d[4];
  for (int v = 0; v < 4; ++v) d[v] = __uint_as_float(steps.c[m + v / 2][2 * j + v % 2]);
  step(d, a, b);
  for (int v = 0; v < 4; ++v)
    if (__float_as_uint(d[v]) != steps.d[m + v / 2][2 * j + v % 2]) atomicAdd(different, 1);
}

}  // namespace

void count_differing_steps(const RecordedSteps* cases, size_t count, unsigned* different,
                           const Execution& on) {
  check_kernel<<<dim3(static_cast<unsigned>(count), 4), kWarp, 0, stream_of(on)>>>(cases,
                                                                                   different);
  cuda_launched("checking its tensor cores");
}

}  // namespace invar::cuda
