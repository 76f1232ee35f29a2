#include "kernels/cuda/hopper_sample.h"

#include "kernels/cuda/fp8.h"

// The recorded cases, made by CMake from tests/data/hopper.
#include "kernels/cuda/hopper8_sample_bytes.h"
#include "kernels/cuda/hopper_sample_bytes.h"

namespace invar::cuda {

static_assert(sizeof kHopperSampleBytes % sizeof(RecordedSteps) == 0);

std::span<const RecordedSteps> hopper_sample() {
  return {reinterpret_cast<const RecordedSteps*>(kHopperSampleBytes),
          sizeof kHopperSampleBytes / sizeof(RecordedSteps)};
}

static_assert(sizeof kHopper8SampleBytes % sizeof(RecordedSteps8) == 0);

std::span<const RecordedSteps8> hopper8_sample() {
  return {reinterpret_cast<const RecordedSteps8*>(kHopper8SampleBytes),
          sizeof kHopper8SampleBytes / sizeof(RecordedSteps8)};
}

}  // namespace invar::cuda
