// The executable contract of every kernel: scalar, written for reading.
#pragma once

#include "kernels/kernels.h"

namespace invar::reference {

void embed(const EmbedParams& p, Part part);
void rms_norm(const RmsNormParams& p, Part part);
template <Order order>
void matmul(const MatmulParams& p, Part part);
template <Order order>
void gated_matmul(const GatedMatmulParams& p, Part part);
void qkv(const QkvParams& p, Part part);
template <Order order>
void attention(const AttentionParams& p, Part part);
void add(const AddParams& p, Part part);
void copy_places(const CopyPlacesParams& p, Part part);
void log_sum_exp(const LogitsParams& p, Part part);

Kernels table(Order order);

}  // namespace invar::reference
