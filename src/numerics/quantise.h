// Elements put into blocks: what `invar convert` writes. Not part of the arithmetic: any blocks are
// a model, these are near a given one.
#pragma once

#include "numerics/dtype.h"

namespace invar {

// Whether put_into_block knows the type.
bool can_be_put_into_blocks(DType type);

// One block of `x`, storage_of(type).block finite elements: its scales, then its values, as
// numerics/blocks.h reads them. By ggml's rules, for q4_k by least squares. Types: q8_0, q4_0,
// q4_k.
void put_into_block(DType type, const float* x, uint8_t* block);

}  // namespace invar
