#include "numerics/block_dot.h"

#include <cmath>

#include "base/check.h"
#include "numerics/int8.h"
#include "numerics/orders.h"

namespace invar::orders {

namespace {

// Columns of x that have one scale.
constexpr int64_t kTogether = 32;

}  // namespace

void quantise_columns(const bf16_t* x, int64_t k, int8_t* q, RunScale* scales) {
  CHECK(k % kTogether == 0, "columns come by the 32");
  for (int64_t i = 0; i < k; i += kTogether)
    scales[i / kTogether] = quantise_run(x + i, kTogether, q + i);
}

float block_dot(const int8_t* x, const RunScale* scales, const PartsOfARow& w, int64_t k,
                int runs) {
  const int64_t length = k / runs;
  CHECK(k % runs == 0 && length % kTogether == 0 && runs <= 8, "a run holds whole leaves");
  float partial[8];
  for (int r = 0; r < runs; ++r) {
    float& acc = partial[r] = 0.0f;
    for (int64_t i = r * length; i < (r + 1) * length; i += w.size) {
      int32_t sum = 0, total = 0;
      for (int64_t j = i; j < i + w.size; ++j) {
        sum += int32_t{x[j]} * w.integers[j];
        total += x[j];
      }
      const float scale = scales[i / kTogether].scale;
      const BlockPart& part = w.factors[i / w.size];
      acc = std::fma(static_cast<float>(sum), scale * part.factor, acc);
      if (w.adds) acc = std::fma(static_cast<float>(total) * scale, part.plus, acc);
    }
  }
  return tree_sum(partial, runs) + 0.0f;
}

}  // namespace invar::orders
