// Operations of recurrent layers for the table of kernels: which rows, which heads, which cells.
// The work inside a row is one of the sets' RecurrentFunctions; products are the table's own, so
// that every order has them.
#pragma once

#include "kernels/cpu/recurrent_functions.h"
#include "kernels/recurrent.h"

namespace invar::cpu {

void short_conv(const RecurrentFunctions& rows, const ShortConvParams& p, const Execution& on);
void recurrent_gates(const RecurrentFunctions& rows, const RecurrentGatesParams& p,
                     const Execution& on);
void recurrent_keys(const RecurrentFunctions& rows, const RecurrentKeysParams& p,
                    const Execution& on);
void recurrence(const RecurrentFunctions& rows, const RecurrenceParams& p, const Execution& on);
void gated_norm(const RecurrentFunctions& rows, const GatedNormParams& p, const Execution& on);

// Puts the operations of a set into the table; they are the same in every order.
template <const RecurrentFunctions& rows>
void override_recurrent(Kernels& kernels) {
  kernels.short_conv = [](const ShortConvParams& p, const Execution& on) {
    short_conv(rows, p, on);
  };
  kernels.recurrent_gates = [](const RecurrentGatesParams& p, const Execution& on) {
    recurrent_gates(rows, p, on);
  };
  kernels.recurrent_keys = [](const RecurrentKeysParams& p, const Execution& on) {
    recurrent_keys(rows, p, on);
  };
  kernels.recurrence = [](const RecurrenceParams& p, const Execution& on) {
    recurrence(rows, p, on);
  };
  kernels.gated_norm = [](const GatedNormParams& p, const Execution& on) {
    gated_norm(rows, p, on);
  };
}

}  // namespace invar::cpu
