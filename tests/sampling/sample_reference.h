// The definition of sampling (numerics 6), written for reading: the sampler gives the same bits.
#pragma once

#include "sampling/sampler.h"

namespace invar {

// `processed`, when not null, becomes the logits after temperature and filters, -inf where
// excluded. Expects flush-to-zero mode.
Sampled sample_reference(const SampleInput& input, std::vector<float>* processed = nullptr);

}  // namespace invar
