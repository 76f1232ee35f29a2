// Loops that keep the multipliers of one instruction set busy from registers. Plain declarations:
// see panel_product.h.
#pragma once

#include <cstdint>

namespace invar::cpu {

// Each does `rounds` rounds and returns the floating-point operations of one.
int64_t peak_avx2(int64_t rounds);
int64_t peak_avx512(int64_t rounds);
int64_t peak_amx(int64_t rounds);

}  // namespace invar::cpu
