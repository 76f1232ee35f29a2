// Matrix products of the orders `portable` and `pair` for the table of kernels: cuts them into
// shares for one of the sets' functions in panel_product.h.
#pragma once

#include "kernels/cpu/panel_product.h"
#include "kernels/row_parts.h"
#include "kernels/training.h"

namespace invar::cpu {

using RunProduct = void (*)(const PanelProduct&);

// `extends`: chains begin at y instead of +0.
void matmul(RunProduct run, const MatmulParams& p, bool extends, const Execution& on);
// `dots`: as in KeptGatedMatmulParams, or null.
void gated_matmul(RunProduct run, const GatedMatmulParams& p, float* dots, const Execution& on);

// The product of a set, as the table has it.
template <RunProduct run>
void matmul(const MatmulParams& p, const Execution& on) {
  matmul(run, p, false, on);
}

// Puts the products of a set into the table, when its order is theirs.
template <RunProduct run, Order order = Order::portable>
void override_matmul(Kernels& kernels) {
  if (kernels.order != order) return;
  kernels.matmul = matmul<run>;
  kernels.gated_matmul = [](const GatedMatmulParams& p, const Execution& on) {
    gated_matmul(run, p, nullptr, on);
  };
}

// The same for training.
template <RunProduct run>
void override_training_matmul(TrainingKernels& kernels) {
  if (kernels.order != Order::portable) return;
  kernels.extend_matmul = [](const MatmulParams& p, const Execution& on) {
    matmul(run, p, true, on);
  };
  kernels.gated_matmul = [](const KeptGatedMatmulParams& p, const Execution& on) {
    gated_matmul(run, p.product, p.dots, on);
  };
}

}  // namespace invar::cpu
