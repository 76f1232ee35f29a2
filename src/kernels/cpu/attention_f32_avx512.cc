#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/attention_tile.h"
// in this order
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/attention_inl.h"
// after it
#include "kernels/cpu/attention_vector_inl.h"

namespace invar::cpu {

void attend_f32_avx512(const TileSource& tiles) {
  attend<VectorProducts<8, float>>(tiles);
}

}  // namespace invar::cpu
