// What this project has for AVX2 with fma, its baseline. Order `portable` where a function has one.
#pragma once

#include "kernels/kernels.h"

namespace invar::avx2 {

void override_elementwise(Kernels& kernels);
void override_attention(Kernels& kernels);

}  // namespace invar::avx2
