// Steps of an H200's tensor cores as they were recorded (tests/data/hopper), a few of every kind.
#pragma once

#include <cstdint>
#include <span>

#include "device/execution.h"

namespace invar::cuda {

// d[m][n] = hopper_step(c[m][n], a[m], b[n]).
struct RecordedSteps {
  uint16_t a[64][16], b[8][16];
  uint32_t c[64][8], d[64][8];
};

std::span<const RecordedSteps> hopper_sample();

// Adds to *different the outputs of the cases that the GPU computes otherwise. Device addresses.
void count_differing_steps(const RecordedSteps* cases, size_t count, unsigned* different,
                           const Execution& on);

}  // namespace invar::cuda
