// A step's new weights become those of the forward where they are: on a GPU.
#pragma once

#include "model/decoder_weights.h"
#include "model/parameters.h"
#include "train/training_device.h"

namespace invar {

// Whether the decoder's tensors are those of the layout, element by element.
bool can_pack_on_device(const TrainingDevice& on, const DecoderSpec& spec);

// Puts bf16 weights of the layout, on the device, into weights that were loaded there before. Their
// addresses stay. REQUIRES: can_pack_on_device.
void pack_on_device(const TrainingDevice& device, const DecoderSpec& spec,
                    const ParameterLayout& layout, const bf16_t* from, const DecoderWeights& to,
                    const Execution& on);

}  // namespace invar
