// What this processor and its operating system let a program use.
#pragma once

namespace invar::cpu {

bool has_avx2();
// F, BW, DQ and VL.
bool has_avx512();
// AMX with bf16, and AVX-512 with its rounding to bf16; asks the kernel for the right to use the
// tiles.
bool has_amx();

}  // namespace invar::cpu
