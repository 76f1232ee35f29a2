// Stands in for sampling/cuda in a build without CUDA, which has no device to draw on.
#include "base/check.h"
#include "sampling/device_sampler.h"

namespace invar::cuda {

void draw(const float*, int64_t, const DrawRow*, int64_t, int32_t*) {
  CHECK(false, "this build has no CUDA kernels");
}

}  // namespace invar::cuda
