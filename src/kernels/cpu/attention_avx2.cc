#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/attention_tile.h"

namespace invar::cpu {

namespace {

constexpr int kRowBlock = 2;

#include "kernels/cpu/vec16_avx2.h"

#include "kernels/cpu/vec16_math.h"

#include "kernels/cpu/attention_inl.h"

#include "kernels/cpu/attention_vector_inl.h"

}  // namespace

void attend_avx2(const AttentionTile& tile, const AttentionTile* next) {
  attend<VectorProducts>(tile, next);
}

}  // namespace invar::cpu
