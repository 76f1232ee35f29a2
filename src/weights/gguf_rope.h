// How a GGUF file's metadata scales the frequencies of rotation.
#pragma once

#include "weights/gguf_keys.h"

namespace invar {

// rope_scaling of a config.json; null: they are not scaled. Throws Error for what is not read here.
json::Value gguf_rope_scaling(const GgufKeys& in, double theta, int64_t head_dim);

}  // namespace invar
