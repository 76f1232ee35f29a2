#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/attention_tile.h"

namespace invar::cpu {

namespace {

constexpr int kRowBlock = 8;

#include "kernels/cpu/vec16_avx512.h"

#include "kernels/cpu/vec16_math.h"

#include "kernels/cpu/attention_inl.h"

#include "kernels/cpu/attention_vector_inl.h"

}  // namespace

void attend_avx512(const AttentionTile& tile, const AttentionTile* next) {
  attend<VectorProducts>(tile, next);
}

}  // namespace invar::cpu
