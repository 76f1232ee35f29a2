#include <cstdint>

#include "kernels/cpu/peak.h"

namespace invar::cpu {

namespace {
#include "kernels/cpu/amx_tiles_inl.h"
}

int64_t peak_amx(int64_t rounds) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) config.row_bytes[t] = 64, config.rows[t] = 16;
  tile_configure(config);
  tile_zero<6>();
  tile_zero<7>();
  for (int64_t i = 0; i < rounds; ++i) {
    tile_dot<0, 6, 7>();
    tile_dot<1, 6, 7>();
    tile_dot<2, 6, 7>();
    tile_dot<3, 6, 7>();
  }
  tile_release();
  return 4 * 16 * 16 * 32 * 2;
}

}  // namespace invar::cpu
