#include "kernels/cuda/hopper_sample.h"

// The recorded cases, made by CMake from tests/data/hopper.
#include "kernels/cuda/hopper_sample_bytes.h"

namespace invar::cuda {

static_assert(sizeof kHopperSampleBytes % sizeof(RecordedSteps) == 0);

std::span<const RecordedSteps> hopper_sample() {
  return {reinterpret_cast<const RecordedSteps*>(kHopperSampleBytes),
          sizeof kHopperSampleBytes / sizeof(RecordedSteps)};
}

}  // namespace invar::cuda
