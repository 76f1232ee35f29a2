// The memory of a step: activations on the device, and the step's row tables. Allocated once for
// the largest step, so that a warm step allocates nothing.
#pragma once

#include <span>

#include "device/execution.h"
#include "model/baseline.h"
#include "model/batch.h"
#include "model/decoder.h"
#include "model/layer_activations.h"
#include "model/step_tables.h"

namespace invar {

struct Workspace {
  // For steps of up to `max_rows` rows of which up to `max_logit_rows` want logits and which keep
  // up to `max_aux_layers` layers' hidden states.
  Workspace(const Decoder& decoder, int max_rows, int max_logit_rows, int max_aux_layers = 0);

  size_t bytes() const;  // of device memory

  int max_rows, max_logit_rows, max_aux_layers;

  // On the device. Heads, F and V are this rank's.
  DeviceArray<float> hidden;                 // [T][D], the residual stream
  DeviceArray<float> qkv;                    // [T][(H + 2G) * E]
  DeviceArray<bf16_t> q;                     // [T][H][round_up(E, 32)]
  DeviceArray<std::byte> normed;             // [T][D], as the next two in the weights' type
  DeviceArray<std::byte> attended;           // [T][H * E]
  DeviceArray<std::byte> gated;              // [T][F]
  DeviceArray<float> logits;                 // [logit rows][V of all ranks]
  DeviceArray<float> partial, rank_logits;   // of several ranks: before they are put together
  DeviceArray<float> embedded;               // of a module that predicts further, as the next one
  DeviceArray<std::byte> joined;             // [T][2D]
  DeviceArray<bool> non_finite;              // [T]
  DeviceArray<std::byte> attention_scratch;  // Kernels::attention_scratch bytes
  // What layers use in turn: views of the above.
  LayerActivations layer;
  Activation joined_rows;

  StepTableBuilder table_builder;
  StepTables tables;             // of the current step
  baseline::Attention baseline;  // of the baseline only

  // Host copies of results; unused where the host reads the device's memory itself.
  PinnedArray<float> host_logits, host_hidden, host_aux_hidden;
  PinnedArray<bool> host_non_finite, last_non_finite;  // of this step, of the one before
};

}  // namespace invar
