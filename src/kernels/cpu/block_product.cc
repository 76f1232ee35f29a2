#include "kernels/cpu/block_product.h"

#include "kernels/cpu/features.h"
#include "numerics/block_dot.h"

namespace invar::cpu {

static_assert(kMostBlockLeaves * 32 == orders::kMostBlockColumns);

void block_best_avx512(const PanelProduct& p) {
  static const RunProduct best = has_avx512_vnni() ? block_product_avx512 : block_product_avx2;
  best(p);
}
void block_best_amx(const PanelProduct& p) {
  static const RunProduct best = has_amx_int8() ? block_product_amx : block_best_avx512;
  best(p);
}

}  // namespace invar::cpu
