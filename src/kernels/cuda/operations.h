// The operations that have one schedule only; see elementwise.cu.
#pragma once

#include "kernels/kernels.h"

namespace invar::cuda {

void embed(const EmbedParams& p, Part);
void rms_norm(const RmsNormParams& p, Part);
void qkv(const QkvParams& p, Part);
void add(const AddParams& p, Part);
void copy_places(const CopyPlacesParams& p, Part);
void log_sum_exp(const LogitsParams& p, Part);

}  // namespace invar::cuda
