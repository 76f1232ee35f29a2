// Products of order portable of many rows of bf16; see product_tiles.cu.
#pragma once

#include "kernels/inference.h"

namespace invar::cuda {

void portable_tiles(const MatmulParams& p, const Execution& on);
void portable_tiles(const GatedMatmulParams& p, const Execution& on);

}  // namespace invar::cuda
