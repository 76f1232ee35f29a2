// Latent attention in DeepSeek's checkpoints and in those of families that followed it.
#pragma once

#include "model/families/family.h"

namespace invar {

// The place of a tensor of latent attention. Where `in_pairs`, elements that turn with each other
// stand beside each other.
StoredAt stored_latent(const DecoderSpec& spec, const TensorSpec& tensor, bool in_pairs);

}  // namespace invar
