// Products of e4m3 numbers on AVX-512.
#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"
// after it
#include "kernels/cpu/run_trees_inl.h"
// after it
#include "kernels/cpu/fp8_inl.h"

namespace invar::cpu {

void fp8_product_avx512(const PanelProduct& p) {
  Fp8Product(p).run();
}

}  // namespace invar::cpu
