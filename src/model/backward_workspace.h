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
  DeviceArray<float> gated;        // [T][F]
  DeviceArray<float> attended;     // [T][H * E]
  DeviceArray<float> qkv;          // [T][(H + 2G) * E]
  DeviceArray<bf16_t> out;         // [T][D], rounded
  DeviceArray<bf16_t> wide;        // [T][the widest], rounded
  DeviceArray<float> rs;           // [T][H + G], of norms
  DeviceArray<bf16_t> transposed;  // an activation's columns as rows
  DeviceArray<bf16_t> packed;      // a product's inputs as a packed matrix
  DeviceArray<std::byte> scratch;  // of attention, for each of the team
  int64_t scratch_stride;
  StepTableBuilder table_builder;
};

}  // namespace invar
