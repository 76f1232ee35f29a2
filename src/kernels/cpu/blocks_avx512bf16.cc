// Blocks on AVX-512 with its rounding to bf16 and its dot products of bytes.
#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/byte_floats_vnni.h"
// after it
#include "kernels/cpu/vec16_math.h"

namespace invar::cpu {

namespace {

constexpr int kUnpackedRows = 8;

}  // namespace

}  // namespace invar::cpu

// after it
#include "kernels/cpu/blocks_inl.h"

namespace invar::cpu {

BlockFunctions blocks_avx512bf16(DType type) {
  return block_functions(type);
}

}  // namespace invar::cpu
