// Order `pair` on AVX2.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx2.h"
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
  return blocks_avx2(type).expand;
}

}  // namespace

void pair_product_avx2(const PanelProduct& p) {
  Product<PairSet<FmaStep, 3, 1, expand>>(p).run();
}

}  // namespace invar::cpu
