// Checkpoints of a model's layers alone, as sentence-transformers and AutoModel save them: names
// without "model." in front.
#pragma once

#include <memory>

#include "weights/tensor_source.h"

namespace invar {

// The tensors under the names that a model with a head has; `stored` where they have them already.
// Where the model has no head the stored one is left out, as AutoModel leaves it; `has_classes`: so
// are score.weight and score.bias, the head of a cross-encoder.
std::unique_ptr<TensorSource> bare_tensors(std::unique_ptr<TensorSource> stored, bool has_head,
                                           bool has_classes);

}  // namespace invar
