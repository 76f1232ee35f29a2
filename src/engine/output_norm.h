// Hidden states behind one of a model's last norms, on the host: for what reads them there.
#pragma once

#include <span>
#include <vector>

#include "engine/model.h"

namespace invar {

enum class OutputNorm {
  model,   // before its head
  module,  // of its module of multi-token prediction
};

// `hidden`: [rows][D], residual streams after the last layer. Leaves [rows][stride] in `out`, in
// f32, and returns the stride, D rounded up to 32. Computed by the host's kernels, from the weights
// as they are now.
int64_t norm_output(Model& model, OutputNorm norm, std::span<const float> hidden,
                    std::vector<float>& out);

}  // namespace invar
