// Looks for NaNs and infinities where a GPU's memory has weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "numerics/dtype.h"

namespace invar::cuda {

struct GpuValues {
  const void* data = nullptr;
  DType type = DType::bf16;  // or f16, f32
  int64_t count = 0;
};

// Of each the index of the first NaN or infinity, or -1. Waits for the GPU.
std::vector<int64_t> first_non_finite(Device& device, std::span<const GpuValues> all);

}  // namespace invar::cuda
