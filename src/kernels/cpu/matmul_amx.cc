// Matrix products of order `portable` on AMX: one TDPBF16PS adds one leaf of 16 rows by 16 outputs.
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

namespace invar::cpu {

namespace {

// From so many rows on, chains that lie in memory between parts of the inner size gain: 512 rows
// are quicker strip by strip, 2048 are not.
constexpr int64_t kChainsInMemoryFrom = 1024;

struct Leaves {
  static constexpr int64_t kStepLeaves = 1;
  template <int R, int P>
  static void add(const void* x, const void* second, int64_t stride, const void* w,
                  const void* other) {
    add_leaf<R, P, RowsAre::past_l1>(x, second, stride, w, other);
  }
  static Vec16 value(const PanelProduct&, const float* at, int64_t, int64_t, int) {
    return load(at);
  }
};

bool has_blocks(const PanelProduct& p) {
  return best_blocks_avx512(p.stored).expand;
}

// Many rows in whole tiles and panels: the chains may lie in memory in between.
bool has_whole_tiles(const PanelProduct& p) {
  return p.rows >= kChainsInMemoryFrom && p.rows % 16 == 0 && !has_blocks(p) &&
         p.outputs == p.panels * (p.out ? 8 : 16);
}

}  // namespace

void product_amx(const PanelProduct& p) {
  // One row by blocks is quicker without tiles; so few have them filled leaf by leaf.
  if (p.f32 || (p.rows == 1 && has_blocks(p))) return product_avx512(p);
  if (p.rows <= kRowsOfBlocksAmx && has_blocks(p)) return product_of_blocks_amx(p);
  if (p.is_open || (has_whole_tiles(p) && !p.out)) return chains_amx(p);
  if (has_whole_tiles(p) && p.dots) return gated_chains_amx(p);
  if (p.out) return AmxProduct<Leaves, End::gated>(p).run();
  if (p.accumulate) return AmxProduct<Leaves, End::accumulate>(p).run();
  AmxProduct<Leaves, End::plain>(p).run();
}

}  // namespace invar::cpu
