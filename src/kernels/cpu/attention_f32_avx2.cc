#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/attention_tile.h"
// in this order
#include "kernels/cpu/vec16_avx2.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/attention_inl.h"
// after it
#include "kernels/cpu/attention_vector_inl.h"

namespace invar::cpu {

void attend_f32_avx2(const TileSource& tiles) {
  attend<VectorProducts<2, float>>(tiles);
}

}  // namespace invar::cpu
