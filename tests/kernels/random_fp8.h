// Random weights of a product of e4m3 numbers (numerics 2.2, 2.5).
#pragma once

#include <cmath>
#include <vector>

#include "kernel_check.h"
#include "kernels/pack.h"

namespace invar {

// One matrix, or a gated pair, of finite numbers; some outputs are all of the largest magnitude, or
// mostly zeros. `type`: e4m3, or e4m3_row with one scale a row.
struct Fp8Weight {
  Fp8Weight(Random& random, int64_t n, int64_t k, int64_t count,
            WeightLayout layout = WeightLayout::rows, DType type = DType::e4m3)
      : packed{.type = type, .n = n, .k = k, .layout = layout, .count = count},
        bytes(packed.bytes()) {
    std::memset(bytes.data(), 0, static_cast<size_t>(bytes.size()));
    const StorageType& storage = storage_of(type);
    std::vector<uint8_t> row(static_cast<size_t>(bytes_of(type, k)));
    for (int64_t m = 0; m < count; ++m)
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t kind = random.below(4);
        float scale = std::fabs(random.uniform());
        for (size_t block = 0; block < row.size(); block += storage.bytes()) {
          if (type == DType::e4m3) scale = std::fabs(random.uniform());
          std::memcpy(&row[block], &scale, sizeof scale);
          for (int j = 0; j < storage.block; ++j)
            row[block + storage.scale_bytes + j] = number(random, kind);
        }
        const PackPlace place{m * kPanelWidth, static_cast<int>(count)};
        pack_rows(packed, row.data(), k, i, 1, place, bytes.data());
      }
    packed.data = bytes.data();
  }

  static uint8_t number(Random& random, uint32_t kind) {
    const uint32_t q = random.next() & 0xff;
    if (kind == 0) return 0x7e;
    if (kind == 1 && q % 8) return 0;
    return static_cast<uint8_t>((q & 0x7f) == 0x7f ? q ^ 1 : q);
  }

  Matrix packed;
  Guarded<uint8_t> bytes;
};

}  // namespace invar
