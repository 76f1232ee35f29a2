// Features that this processor and its operating system let a program use.
#pragma once

namespace invar::cpu {

bool has_avx2();
// F, BW, DQ and VL.
bool has_avx512();
// Beside it, its rounding to bf16 and its sums of products of four integers.
bool has_avx512_bf16();
// AMX with bf16, and AVX-512 with its rounding to bf16; asks the kernel for the right to use the
// tiles.
bool has_amx();
// Sums of products of four integers of 8 bits: of 16 lanes beside AVX-512, of 8 beside AVX2, of
// tiles beside the others of AMX.
bool has_avx512_vnni();
bool has_avxvnni();
bool has_amx_int8();

}  // namespace invar::cpu
