// Whether a checkpoint holds the tensors that a decoder is made of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/families/tensor_table.h"
#include "weights/tensor_source.h"

namespace invar {

// Throws Error unless `source` holds every tensor of the spec with its shape as bf16, f16 or f32,
// and nothing else that could matter (stored rotary frequencies are ignored, and the copies of
// embedding and head that a module of multi-token prediction may come with). A tied model may
// store lm_head.weight only when it equals the embedding, bit for bit: versions of transformers
// disagree about which of two different ones counts.
void check_tensors(const DecoderSpec& spec, const TensorSource& source);

// Whether the module of multi-token prediction has a tensor.
bool has_module(const DecoderSpec& spec, const TensorSource& source);
// `spec` without the module where the checkpoint has none: save_pretrained of transformers writes
// the config.json that announces one, and leaves its tensors out.
DecoderSpec spec_of_stored(DecoderSpec spec, const TensorSource& source);

// Throws Error unless the module of multi-token prediction has the model's embedding and head:
// where a checkpoint stores the module's own they must be these, bit for bit.
void check_module(const DecoderSpec& spec, const TensorSource& source);

// The type of the matrix products (numerics 0): bf16 when every matrix is bf16, else f32.
DType product_type(const DecoderSpec& spec, const TensorSource& source);
// Whether some matrix is stored in blocks: then those of f16 and f32 are rounded.
bool has_blocks(const DecoderSpec& spec, const TensorSource& source);

// The storage type of some matrix that can be multiplied as it is stored (numerics 2.1, 2.2, 2.5):
// i8, e4m3 or e4m3_row; bf16 where none is.
DType quantised_type(const DecoderSpec& spec, const TensorSource& source);

}  // namespace invar
