#include "kernels/back_end.h"

#include "kernels/cuda/at_once.h"
#include "kernels/cuda/baseline.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/fp8.h"

namespace invar {

namespace {

constexpr BackEnd kCuda = {
    .kernels = cuda::kernels,
    .training_kernels = cuda::training_kernels,
    .baseline_kernels = cuda::baseline_kernels,
    .at_once = cuda::at_once,
    .check_hopper_steps = cuda::check_hopper_steps,
    .check_hopper8_steps = cuda::check_hopper8_steps,
    .pack_outputs = cuda::pack_outputs,
    .widen = cuda::widen,
    .first_non_finite = cuda::first_non_finite,
    .chunk_digests = cuda::chunk_digests,
    .read = cuda::read,
};

}  // namespace

const BackEnd& gpu_back_end() {
  return kCuda;
}

AtOnce at_once(const Kernels& table) {
  const bool is_gpu = table.order == Order::hopper && table.weights == WeightLayout::rows;
  return is_gpu ? gpu_back_end().at_once() : AtOnce();
}

}  // namespace invar
