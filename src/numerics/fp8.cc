#include "numerics/fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "numerics/e4m3.h"
#include "numerics/hopper8_step.h"
#include "numerics/orders.h"

namespace invar::orders {

namespace {

constexpr float kLargestE4m3 = 448.0f;

// Where the group of column i ends that begins there or before, in a run that ends at `end`.
int64_t group_end(int64_t i, int64_t end) {
  return std::min((i / kFp8Group + 1) * kFp8Group, end);
}

float quantise_together(const bf16_t* x, int64_t k, uint8_t* q) {
  uint16_t largest = 0;
  for (int64_t i = 0; i < k; ++i) largest = std::max<uint16_t>(largest, x[i] & 0x7fff);
  if (largest >= 0x7f80) {
    std::fill_n(q, k, uint8_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
  float scale = bf16_to_f32(largest) / kLargestE4m3;
  if (scale == 0.0f) scale = 1.0f;
  const float inverse = 1.0f / scale;
  for (int64_t i = 0; i < k; ++i) q[i] = e4m3::from_f32(bf16_to_f32(x[i]) * inverse);
  return scale;
}

// A chain of steps, from +0; columns past k count as zero.
float fp8_chain(const uint8_t* x, const uint8_t* w, int64_t k) {
  float acc = 0.0f;
  for (int64_t i = 0; i < k; i += 32) {
    uint8_t xs[32] = {}, ws[32] = {};
    std::copy_n(x + i, std::min<int64_t>(32, k - i), xs);
    std::copy_n(w + i, std::min<int64_t>(32, k - i), ws);
    acc = hopper8_step(acc, xs, ws);
  }
  return acc;
}

}  // namespace

void quantise_fp8_run(const bf16_t* x, int64_t first, int64_t k, int run, uint8_t* q,
                      RunScale* scales) {
  for (int64_t i = first, end; i < first + k; i = end) {
    end = group_end(i, first + k);
    scales[fp8_group(i, run)] = {quantise_together(x + (i - first), end - i, q + (i - first)), 0};
  }
}

float fp8_dot(const uint8_t* x, const RunScale* scales, const uint8_t* w, const float* w_scales,
              int64_t k, int runs) {
  CHECK(runs <= 8 && k % runs == 0, "equal runs");
  const int64_t length = k / runs;
  float partial[8];
  for (int r = 0; r < runs; ++r) {
    float sum = 0.0f;
    for (int64_t i = r * length, end; i < (r + 1) * length; i = end) {
      end = group_end(i, (r + 1) * length);
      const float both = scales[fp8_group(i, r)].scale * w_scales[i / kFp8Group];
      sum = std::fma(fp8_chain(x + i, w + i, end - i), both, sum);
    }
    partial[r] = sum;
  }
  return tree_sum(partial, runs) + 0.0f;
}

RunScale quantise_fp8_row(const bf16_t* x, int64_t k, uint8_t* q) {
  return {quantise_together(x, k, q), 0};
}

float fp8_row_dot(const uint8_t* x, const RunScale* scales, const uint8_t* w, float w_scale,
                  int64_t k, int runs) {
  CHECK(runs <= 8 && k % runs == 0, "equal runs");
  const int64_t length = k / runs;
  float partial[8];
  for (int r = 0; r < runs; ++r)
    partial[r] = fp8_chain(x + r * length, w + r * length, length) * (scales[r].scale * w_scale);
  return tree_sum(partial, runs) + 0.0f;
}

}  // namespace invar::orders
