// The backward of experts.
#pragma once

#include "model/decoder_spec.h"

namespace invar {

class BackwardPass;

void experts_backward(BackwardPass& b, int layer);
// Why there is none of such a layer, or null.
const char* experts_refusal(const ExpertsSpec& experts);

}  // namespace invar
