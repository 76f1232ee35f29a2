// The memory of a backward pass.
#pragma once

#include "kernels/training.h"
#include "model/decoder.h"
#include "model/step_tables.h"

namespace invar {

struct BackwardWorkspace {
  // For batches of up to max_rows rows in sequences of up to max_positions.
  BackwardWorkspace(const Decoder& decoder, const TrainingKernels& kernels, int max_rows,
                    int max_positions);

  int max_rows, max_positions;
  // Gradients of what the names say.
  DeviceArray<float> hidden;       // [T][D], the residual stream
  DeviceArray<float> normed;       // [T][D]
  DeviceArray<float> beside;       // [T][D], of a part that stands beside another
  DeviceArray<float> gated;        // [T][F]
  DeviceArray<float> attended;     // [T][H * E]
  DeviceArray<float> qkv;          // [T][(H + 2G) * E]
  DeviceArray<bf16_t> out;         // [T][D], rounded
  DeviceArray<bf16_t> wide;        // [T][the widest], rounded
  DeviceArray<float> rs;           // [T][H + G], of norms
  DeviceArray<bf16_t> transposed;  // an activation's columns as rows
  DeviceArray<bf16_t> packed;      // a product's inputs as a packed matrix
  // Of layers with experts: what the names say of each of a row's pairs, or of the rows of leaves.
  DeviceArray<bf16_t> pair_outputs;   // [T * C][D], rounded
  DeviceArray<float> pair_gated;      // [T * C][F of an expert]
  DeviceArray<float> pair_dots;       // [T * C][2F], the products of gate and up
  DeviceArray<bf16_t> pair_wide;      // [T * C][2F], rounded
  DeviceArray<float> pair_inputs;     // [T * C][D]
  DeviceArray<float> expert_weights;  // [T][C]
  DeviceArray<bf16_t> router;         // [T][experts], rounded
  DeviceArray<bf16_t> leaf_outputs;   // [T][D or 2F]
  DeviceArray<bf16_t> leaf_inputs;    // [T][D or F]
  DeviceArray<std::byte> scratch;     // of attention, for each of the team
  int64_t scratch_stride;
  StepTableBuilder table_builder;

 private:
  void place_experts(const Decoder& decoder);
};

}  // namespace invar
