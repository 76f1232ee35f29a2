// What this project has for AVX-512 (F, BW, DQ, VL). Order `portable` where a function has one.
#pragma once

#include "kernels/kernels.h"

namespace invar::avx512 {

void override_elementwise(Kernels& kernels);
void override_attention(Kernels& kernels);

}  // namespace invar::avx512
