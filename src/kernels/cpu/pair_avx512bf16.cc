// Order `pair` by vdpbf16ps, which is a step of it: see pair_instruction_holds.
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

inline Vec16 dot_pairs(Vec16 chain, Bits16 x, Bits16 w) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(chain.v) : "v"(x.v), "v"(w.v));
  return chain;
}

struct DotStep {
  static constexpr bool kTakesWords = true;
  explicit DotStep(Bits16 pair) : w_(pair) {}
  Vec16 add(Vec16 chain, const char* leaf, int j) const {
    Vec16 sum = chain;
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0"
            : "+v"(sum.v)
            : "v"(w_.v), "m"(reinterpret_cast<const uint32_t*>(leaf)[j]));
    return sum;
  }

 private:
  Bits16 w_;
};

ExpandPanel expand(DType type) {
  return blocks_avx512bf16(type).expand;
}

}  // namespace

void pair_product_avx512bf16(const PanelProduct& p) {
  Product<PairSet<DotStep, 6, 4, expand>>(p).run();
}

void pair_steps_avx512bf16(const uint32_t* x, const uint32_t* w, const float* chain, float* out) {
  store(out, dot_pairs(load(chain), load_bits(x), load_bits(w)));
}

}  // namespace invar::cpu
