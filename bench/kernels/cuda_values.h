// Random operands for measuring: a GPU's speed depends on the bits it multiplies.
#pragma once

#include <algorithm>
#include <vector>

#include "../../tests/kernels/kernel_check.h"
#include "device/device.h"

namespace invar::bench {

inline std::vector<bf16_t> random_values(int64_t count, float scale = 1.0f) {
  Random random(1);
  std::vector<bf16_t> values(count);
  for (int64_t i = 0; i < std::min<int64_t>(count, 1 << 20); ++i)
    values[i] = f32_to_bf16(scale * random.uniform());
  for (int64_t i = 1 << 20; i < count; ++i) values[i] = values[(i * 7) & ((1 << 20) - 1)];
  return values;
}

// A copy of `host` on a GPU.
template <typename T>
DeviceArray<T> on_gpu(Device& gpu, const std::vector<T>& host) {
  DeviceArray<T> array(gpu, host.size(), "a bench");
  gpu.upload(array.data(), host.data(), host.size() * sizeof(T));
  return array;
}

}  // namespace invar::bench
