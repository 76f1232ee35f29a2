#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/amx_strip_inl.h"
#include "kernels/cpu/peak.h"

namespace invar::cpu {

// Ordinary operands, from 2^-3 to 1 and of both signs: zeros sample less current, and the clock
// rises to a rate that no product of a model sees.
int64_t peak_amx(int64_t rounds) {
  configure_tiles();
  alignas(64) uint16_t operand[4][512];
  uint32_t state = 1;
  for (auto& tile : operand)
    for (uint16_t& x : tile) {
      state = state * 1664525 + 1013904223;
      x = static_cast<uint16_t>((state >> 16 & 0x81ff) | 0x3e00);
    }
  tile_load<4>(operand[0], 64);
  tile_load<5>(operand[1], 64);
  tile_load<6>(operand[2], 64);
  tile_load<7>(operand[3], 64);
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  for (int64_t i = 0; i < rounds; ++i) {
    tile_dot<0, 4, 6>();
    tile_dot<1, 4, 7>();
    tile_dot<2, 5, 6>();
    tile_dot<3, 5, 7>();
  }
  tile_release();
  return 4 * 16 * 16 * 32 * 2;
}

}  // namespace invar::cpu
