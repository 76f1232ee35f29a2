// The operations of kernels/recurrent_backward.h on a GPU; see recurrent_rows_backward.cu and
// recurrence_backward.cu.
#pragma once

#include "kernels/recurrent_backward.h"
#include "kernels/training.h"

namespace invar::cuda {

void short_conv_backward(const ShortConvBackwardParams& p, const Execution& on);
void gated_norm_backward(const GatedNormBackwardParams& p, const Execution& on);
void recurrent_gates_backward(const RecurrentGatesBackwardParams& p, const Execution& on);
void recurrent_keys_backward(const RecurrentKeysBackwardParams& p, const Execution& on);
void row_sums(const RowSumsParams& p, const Execution& on);
void output_gate_backward(const OutputGateBackwardParams& p, const Execution& on);
// Of each order.
template <Order order>
void recurrence_backward(const RecurrenceBackwardParams& p, const Execution& on);
// Bytes for all heads of sequences that are computed at a time.
int64_t recurrence_backward_scratch(int64_t max_positions, int64_t key_size, int64_t value_size);

}  // namespace invar::cuda
