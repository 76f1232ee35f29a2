// The hot loop of order `hopper` on a CPU: steps of a chain for 16 outputs and some rows. Plain
// data and declarations only, since files with their own instruction set include this.
#pragma once

#include <cstdint>

namespace invar::hopper {

constexpr int kStep = 16;       // products in a step, outputs in a panel
constexpr int kBlockRows = 16;  // rows that share the expansion of a weight

// The 16 inner elements of one row in one step, ready for broadcasting.
struct alignas(64) StepInput {
  float value[kStep];
  // Exponent fields (bits & 0x7f80) of elements 2j (low half) and 2j + 1 (high half).
  uint32_t exponents[kStep / 2];
  // A step of this row is fast only if its largest exponent is at least this (as exponent field +
  // 127, at bit 23); ~0 if an element is too large or not finite.
  uint32_t floor;
};

// Bounds that allow the fast step, in sums of two exponent fields (true exponent + 254). With all
// operands below 2^33 and the largest sum at least kMargin above every single field, no zero or
// subnormal can be mistaken for the largest addend, all that flush-to-zero loses lies below the
// truncation, and every f32 operation of the fast step is exact.
constexpr uint32_t kMargin = 33, kLargestField = 159, kLowestField = 127, kSumEnd = 352;

// Runs `steps` steps of the chains acc[row][output] for one panel of a packed bf16 weight (16
// elements of 16 outputs per step, [8 pairs][16][2]). x is [steps][kBlockRows]. Outputs outside the
// mask `outputs` get any value.
using PanelFunction = void(const StepInput* x, int rows, const uint16_t* panel, int steps,
                           uint32_t outputs, float (*acc)[kStep]);
PanelFunction panel_avx2, panel_avx512;

// 16 elements of a row, ready for the panel functions.
StepInput expand_input(const uint16_t* x);

// One step by the scalar definition, for the outputs in the mask: what the panel functions call
// when a step is not fast.
void exact_step(const StepInput& x, const uint16_t* panel, uint32_t outputs, float* acc);

}  // namespace invar::hopper
