// Order `pair` on AVX-512 by fma.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"
// after it
#include "kernels/cpu/product_inl.h"
// after it
#include "kernels/cpu/pair_inl.h"

namespace invar::cpu {

namespace {

ExpandPanel expand(DType type) {
  return best_blocks_avx512(type).expand;
}

}  // namespace

void pair_product_avx512(const PanelProduct& p) {
  Product<PairSet<FmaStep, 6, 2, expand>>(p).run();
}

}  // namespace invar::cpu
