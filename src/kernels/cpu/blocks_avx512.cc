// Blocks on AVX-512.
#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/byte_floats_inl.h"
#include "kernels/cpu/vec16_math.h"

namespace invar::cpu {

namespace {

constexpr int kUnpackedRows = 8;

}  // namespace

}  // namespace invar::cpu

// after it
#include "kernels/cpu/blocks_inl.h"

namespace invar::cpu {

BlockFunctions blocks_avx512(DType type) {
  return block_functions(type);
}

}  // namespace invar::cpu
