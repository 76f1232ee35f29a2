// Which of the products of order `pair` a processor with AVX-512 uses.
#pragma once

#include "kernels/cpu/panel_product.h"

namespace invar::cpu {

// Whether this processor's vdpbf16ps is a step of order `pair` (numerics 1): tried once, on some
// thousand random and odd operands.
bool pair_instruction_holds();

// By that instruction where it is there and holds, else by fma: the same bits.
void pair_best_avx512(const PanelProduct& p);

}  // namespace invar::cpu
