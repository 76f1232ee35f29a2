#include "kernels/cpu/features.h"
#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

BlockFunctions best_blocks_avx512(DType type) {
  static const auto best = has_avx512_bf16() ? blocks_avx512bf16 : blocks_avx512;
  return best(type);
}

}  // namespace invar::cpu
