// A random matrix in blocks, and the bf16 tensor that it stands for.
#pragma once

#include <cmath>
#include <vector>

#include "kernel_check.h"
#include "kernels/pack.h"
#include "numerics/blocks.h"

namespace invar {

inline std::vector<DType> block_types() {
  std::vector<DType> types;
  for (const StorageType& type : kStorageTypes)
    if (type.has_blocks() && type.element == DType::bf16) types.push_back(type.type);
  return types;
}

// A block of any bits whose elements are finite, and its elements.
inline void random_block(Random& random, const StorageType& type, uint8_t* block,
                         bf16_t* elements) {
  for (bool finite = false; !finite;) {
    for (int i = 0; i < type.bytes(); ++i) block[i] = static_cast<uint8_t>(random.next());
    // Scales that leave no block beside others: of mxfp4 the exponent of a power of two.
    if (type.type == DType::mxfp4)
      block[0] = static_cast<uint8_t>(block[1] % 8 == 0 ? block[0] % 4 : 120 + block[0] % 8);
    float wide[kMaxBlock];
    expand_block(type, block + type.scale_bytes, block, wide);
    finite = true;
    for (int i = 0; i < type.block; ++i) {
      finite = finite && std::isfinite(wide[i]);
      elements[i] = f32_to_bf16(wide[i]);
    }
  }
}

// One matrix, or a stack, stored both ways. k is whole blocks.
struct TwoFormsOfAMatrix {
  TwoFormsOfAMatrix(Random& random, DType type, int64_t n, int64_t k, int count,
                    WeightLayout layout = WeightLayout::panels)
      : stored{.type = type, .n = n, .k = k, .layout = layout, .count = count},
        twin{.n = n, .k = k, .layout = layout, .count = count},
        stored_bytes(stored.bytes()),
        twin_elements(twin.elements()) {
    std::memset(stored_bytes.data(), 0, stored_bytes.size());
    std::memset(twin_elements.data(), 0, twin.bytes());
    const StorageType& storage = storage_of(type);
    std::vector<uint8_t> blocks(bytes_of(type, k));
    std::vector<bf16_t> row(k);
    for (int m = 0; m < count; ++m)
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t b = 0; b < k / storage.block; ++b)
          random_block(random, storage, &blocks[b * storage.bytes()], &row[b * storage.block]);
        const PackPlace place{m * kPanelWidth, count};
        pack_rows(stored, blocks.data(), k, i, 1, place, stored_bytes.data());
        pack_rows(twin, row.data(), k, i, 1, place, twin_elements.data());
      }
    stored.data = stored_bytes.data();
    twin.data = twin_elements.data();
  }

  Matrix stored, twin;
  Guarded<uint8_t> stored_bytes;
  Guarded<bf16_t> twin_elements;
};

}  // namespace invar
