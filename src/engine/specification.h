// A model's computation, apart from its weights, as one digest.
#pragma once

#include "base/sha256.h"
#include "model/families/families.h"

namespace invar {

// The specification's digest (numerics 8): of everything in config.json and generation_config.json
// that an answer's tokens depend on, as it was understood.
Digest specification_digest(const ModelConfig& config);

}  // namespace invar
