// Products of blocks as integers with AVX-512 VNNI: one VPDPBUSD adds four products to each of 16
// outputs. Its weights have no sign: those of 8 bits stand as their value + 128.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"
// after it
#include "kernels/cpu/block_product_inl.h"
// after it
#include "kernels/cpu/block_leaf_vnni.h"

namespace invar::cpu {

namespace {

struct Avx512Vnni {
  template <typename Parts>
  static constexpr int zero_of() {
    return unsigned_zero<Parts>();
  }
  template <typename Parts>
  static void add(const LeavesOfPanel& t) {
    for_each_leaf<Parts>(t, [&](int64_t i, const Parts& parts) {
      WholeLeaf<Parts>(parts).add_rows(t.chains, t.x + i * t.rows, t.rows);
    });
  }
  template <typename Parts>
  static void begin() {}
  static void end() {}
  static void in_order(float*, int64_t) {}
};

}  // namespace

void block_product_avx512(const PanelProduct& p) {
  block_product<Avx512Vnni>(p);
}

}  // namespace invar::cpu
