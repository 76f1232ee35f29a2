#include "numerics/int8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "numerics/orders.h"

namespace invar::orders {

RunScale quantise_run(const bf16_t* x, int64_t k, int8_t* q) {
  uint16_t largest = 0;
  for (int64_t i = 0; i < k; ++i) largest = std::max<uint16_t>(largest, x[i] & 0x7fff);
  if (largest >= 0x7f80) {
    std::fill_n(q, k, int8_t{0});
    return {std::numeric_limits<float>::quiet_NaN(), 0};
  }
  float scale = bf16_to_f32(largest) / 127.0f;
  if (scale == 0.0f) scale = 1.0f;
  const float inverse = 1.0f / scale;
  int32_t sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    const float y = bf16_to_f32(x[i]) * inverse;
    q[i] = static_cast<int8_t>((y + 0x1.8p23f) - 0x1.8p23f);  // to the nearest, ties to even
    sum += q[i];
  }
  return {scale, sum};
}

float int8_dot(const int8_t* x, const RunScale* scales, const int8_t* w, float w_scale, int64_t k,
               int runs) {
  CHECK(k / runs <= kMostInt8 && runs <= 8, "a run whose sum may not fit into 32 bits");
  const int64_t length = k / runs;
  float partial[8];
  for (int r = 0; r < runs; ++r) {
    int32_t sum = 0;
    for (int64_t i = r * length; i < (r + 1) * length; ++i) sum += int32_t{x[i]} * w[i];
    partial[r] = static_cast<float>(sum) * (scales[r].scale * w_scale);
  }
  return tree_sum(partial, runs) + 0.0f;
}

}  // namespace invar::orders
