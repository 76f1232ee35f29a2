#include "kernels/cpu/int8.h"

#include <cstring>

#include "base/check.h"
#include "kernels/cpu/features.h"

namespace invar::cpu {

void quantise(const QuantiseParams& p, const Execution& on) {
  CHECK(p.x.type == DType::bf16 && p.out.type == DType::i8, "what becomes integers is bf16");
  CHECK(p.split_k == 1 || p.width % (kLeafPad * p.split_k) == 0, "a run must hold whole leaves");
  const int64_t length = p.width / p.split_k;
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const auto* x = static_cast<const bf16_t*>(p.x.data) + t * p.x.stride;
    auto* q = static_cast<int8_t*>(p.out.data) + t * p.out.stride;
    for (int r = 0; r < p.split_k; ++r)
      p.out.scales[t * p.split_k + r] = quantise_avx2(x + r * length, length, q + r * length);
  }
}

void int8_best_avx2(const PanelProduct& p) {
  static const RunProduct best = has_avxvnni() ? int8_product_avxvnni : int8_product_avx2;
  best(p);
}
void int8_best_avx512(const PanelProduct& p) {
  static const RunProduct best = has_avx512_vnni() ? int8_product_avx512 : int8_best_avx2;
  best(p);
}
void int8_best_amx(const PanelProduct& p) {
  static const RunProduct best = has_amx_int8() ? int8_product_amx : int8_best_avx512;
  best(p);
}

}  // namespace invar::cpu
