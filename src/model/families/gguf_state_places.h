// Where the tensors of layers with states stand in GGUF files.
#pragma once

#include "model/families/family.h"

namespace invar {

// Whether a layer with a state has the tensor for it.
bool is_of_state(const DecoderSpec& spec, const TensorSpec& tensor);
// Where a new file has such a one.
StoredAt gguf_state_place(const DecoderSpec& spec, const TensorSpec& tensor);
// Its name in its layer where that is not the role's usual one; else null.
const char* gguf_state_name(const DecoderSpec& spec, const TensorSpec& tensor);

}  // namespace invar
