// Falcon H1's multipliers have no keys in GGUF files: matrices stand there times them.
#pragma once

#include <string>
#include <vector>

#include "model/decoder_spec.h"
#include "model/tensor_role.h"
#include "numerics/storage.h"
#include "weights/gguf_writer.h"

namespace invar {

struct GgufFolding {
  DecoderSpec said;               // the model that the file says
  float embedding = 1, head = 1;  // what the decoder's tensors are multiplied by
  std::vector<GgufKey> keys = {};

  float multiplier_of(TensorRole role) const {
    if (role == TensorRole::embedding) return embedding;
    return role == TensorRole::head ? head : 1;
  }
};

// For a file whose matrices are of `type`. In one of bf16 the embedding and the head are f32, and
// keys say what makes bf16 numbers of them again: their products are rounded where a directory's
// are. In others they are blocks of the products. Models of other families are as they are. Throws
// Error where one tensor would have to be two.
GgufFolding folded_for_gguf(const DecoderSpec& spec, DType type, const std::string& where);

}  // namespace invar
