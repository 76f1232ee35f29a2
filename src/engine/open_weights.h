// The tensors behind a model, for whoever needs some of them beside the forward.
#pragma once

#include <memory>

#include "engine/model.h"
#include "weights/tensor_source.h"

namespace invar {

// What the options name: a checkpoint's tensors or random ones. Throws Error when they cannot be
// opened.
std::unique_ptr<TensorSource> open_weights(const ModelOptions& options);

}  // namespace invar
