// The backward of RMSNorm over one vector (numerics 9).
#pragma once

#include "numerics/math.h"
#include "numerics/orders.h"

namespace invar::reference {

inline float inverse_rms(const float* x, int64_t width, float eps) {
  const float sum = orders::sum64_squares({x, static_cast<size_t>(width)});
  return 1.0f / math::sqrt(sum / static_cast<float>(width) + eps);
}

// sum64 by fma of (x, y).
inline float dot64(const float* x, const float* y, int64_t count) {
  float lane[64] = {};
  for (int64_t i = 0; i < count; ++i) lane[i % 64] = __builtin_fmaf(x[i], y[i], lane[i % 64]);
  return orders::halve64(lane);
}

// dx of y = (x * rs) * w; use(i, dx_i).
template <typename Use>
void norm_backward_row(const float* dy, const float* x, const float* weight, int64_t width,
                       float rs, Use use) {
  float lane[64] = {};
  for (int64_t i = 0; i < width; ++i)
    lane[i % 64] = __builtin_fmaf(dy[i] * weight[i], x[i] * rs, lane[i % 64]);
  const float mean = orders::halve64(lane) / static_cast<float>(width);
  for (int64_t i = 0; i < width; ++i)
    use(i, __builtin_fmaf(-(x[i] * rs), mean, dy[i] * weight[i]) * rs);
}

}  // namespace invar::reference
