// Products of integers on AMX: one TDPBSUD adds the products of 64 columns of 16 rows by 16
// outputs.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/amx_strip_inl.h"
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"
// after it
#include "kernels/cpu/amx_product_inl.h"
#include "kernels/cpu/int8_inl.h"

namespace invar::cpu {

namespace {

struct Integers {
  static constexpr int64_t kStepLeaves = 2;
  // As add_leaf.
  template <int R, int P>
  static void add(const void* x, const void* second, int64_t stride, const void* w,
                  const void* other) {
    tile_load_once<4>(x, stride);
    tile_load<6>(w, kTileRowBytes);
    tile_dot_int8<0, 4, 6>();
    if constexpr (P == 2) {
      tile_load<7>(other, kTileRowBytes);
      tile_dot_int8<1, 4, 7>();
    }
    if constexpr (R == 2) {
      tile_load_once<5>(second, stride);
      tile_dot_int8<2, 5, 6>();
      if constexpr (P == 2) tile_dot_int8<3, 5, 7>();
    }
  }
  static Vec16 value(const PanelProduct& p, const float* at, int64_t row, int64_t panel, int run) {
    const RunScale& scale = p.x_scales[row * p.split_k + run];
    const __m512i more = _mm512_slli_epi32(_mm512_set1_epi32(scale.sum), 7);
    const __m512i sum = _mm512_sub_epi32(_mm512_load_si512(at), more);
    return Vec16{_mm512_cvtepi32_ps(sum)} * (splat(scale.scale) * panel_scales(p, panel));
  }
};

}  // namespace

void int8_product_amx(const PanelProduct& p) {
  if (p.out) return AmxProduct<Integers, End::gated>(p).run();
  if (p.accumulate) return AmxProduct<Integers, End::accumulate>(p).run();
  AmxProduct<Integers, End::plain>(p).run();
}

}  // namespace invar::cpu
