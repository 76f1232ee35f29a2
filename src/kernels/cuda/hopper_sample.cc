#include "kernels/cuda/hopper_sample.h"

namespace invar::cuda {

namespace {

// The bytes of the recorded cases, made by CMake from tests/data/hopper.
alignas(64) constexpr unsigned char kBytes[] = {
#include "kernels/cuda/hopper_sample.inc"
};
static_assert(sizeof kBytes % sizeof(RecordedSteps) == 0);

}  // namespace

std::span<const RecordedSteps> hopper_sample() {
  return {reinterpret_cast<const RecordedSteps*>(kBytes), sizeof kBytes / sizeof(RecordedSteps)};
}

}  // namespace invar::cuda
