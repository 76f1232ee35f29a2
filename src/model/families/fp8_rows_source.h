// The matrices of a bf16 model as e4m3 numbers with a scale for each row, made as they are read
// (numerics 0.1, mode `fp8-row`).
#pragma once

#include <memory>

#include "model/decoder_spec.h"
#include "weights/tensor_source.h"

namespace invar {

// The tensors of `base`, of which those that may be multiplied as quantised numbers are e4m3_row
// where they are bf16 with 128 k columns. Read as bf16 or f32 they are what they were. Reading
// throws Error for a NaN or an infinity.
std::unique_ptr<TensorSource> fp8_rows(const DecoderSpec& spec, std::unique_ptr<TensorSource> base);

}  // namespace invar
