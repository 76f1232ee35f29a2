// Random operands of a product of integers (numerics 2.1).
#pragma once

#include <cmath>
#include <vector>

#include "kernel_check.h"
#include "kernels/pack.h"

namespace invar {

// Integers as if rows had been quantised; some rows are all of the largest magnitude, some scales
// no number (not those of the first row).
struct Int8Rows {
  Int8Rows(Random& random, int64_t rows, int64_t k, int split_k,
           WeightLayout layout = WeightLayout::panels)
      : stride(int8_stride(k, layout)), values(rows * stride), scales(rows * split_k) {
    for (int64_t t = 0; t < rows; ++t) {
      int8_t* row = &values[t * stride];
      const uint32_t kind = random.below(4);
      for (int64_t i = 0; i < round_up(k, kLeafPad); ++i) {
        const int q = static_cast<int>(random.below(255)) - 127;
        row[i] = static_cast<int8_t>(i >= k ? 0 : kind == 0 ? 127 : kind == 1 ? -127 : q);
      }
      for (int r = 0; r < split_k; ++r) {
        RunScale& scale = scales[t * split_k + r];
        scale = {t == 0 || random.below(20) ? std::fabs(random.uniform()) : std::nanf(""), 0};
        for (int64_t i = 0; i < k / split_k; ++i) scale.sum += row[r * (k / split_k) + i];
      }
    }
  }
  Activation view() const { return {values.data(), DType::i8, stride, scales.data()}; }

  int64_t stride;
  Guarded<int8_t> values;
  Guarded<RunScale> scales;
};

// One matrix, or a gated pair; some outputs are all of the largest magnitude.
struct Int8Weight {
  Int8Weight(Random& random, int64_t n, int64_t k, int64_t count,
             WeightLayout layout = WeightLayout::panels)
      : packed{.type = DType::i8, .n = n, .k = k, .layout = layout, .count = count},
        bytes(packed.bytes()) {
    std::memset(bytes.data(), 0, static_cast<size_t>(bytes.size()));
    std::vector<int8_t> row(static_cast<size_t>(k));
    for (int64_t m = 0; m < count; ++m)
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t kind = random.below(4);
        for (int8_t& q : row)
          q = static_cast<int8_t>(kind == 0 ? 127 : kind == 1 ? -128 : random.next());
        const float scale = random.uniform();
        const PackPlace place{m * kPanelWidth, static_cast<int>(count)};
        pack_rows(packed, row.data(), k, i, 1, place, bytes.data());
        pack_scales(packed, &scale, i, 1, place, bytes.data());
      }
    packed.data = bytes.data();
  }
  Matrix packed;
  Guarded<uint8_t> bytes;
};

inline std::vector<float> random_vector(Random& random, int64_t size) {
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) value = random.uniform();
  return values;
}

}  // namespace invar
