// Blocks on AVX-512 with its rounding to bf16.
#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx512.h"

namespace invar::cpu {

namespace {

constexpr int kUnpackedRows = 8;

inline Bits16 bf16_pairs(Vec16 a, Vec16 b) {
  __m512i pairs;
  __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pairs) : "v"(b.v), "v"(a.v));
  return {pairs};
}

}  // namespace

}  // namespace invar::cpu

// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/blocks_inl.h"

namespace invar::cpu {

BlockFunctions blocks_avx512bf16(DType type) {
  return block_functions(type);
}

}  // namespace invar::cpu
