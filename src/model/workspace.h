// The memory of a step: activations on the device, and the step's row tables. Allocated once for
// the largest step, so that a warm step allocates nothing.
#pragma once

#include <span>

#include "device/execution.h"
#include "model/adapter_step.h"
#include "model/baseline.h"
#include "model/batch.h"
#include "model/branch.h"
#include "model/chosen_slots.h"
#include "model/decoder.h"
#include "model/step_tables.h"

namespace invar {

struct Workspace {
  // For steps of up to `max_rows` rows of which up to `max_logit_rows` want logits and which keep
  // up to `max_aux_layers` layers' hidden states.
  // Where the host takes no logits a device needs no room for them there.
  Workspace(const Decoder& decoder, int max_rows, int max_logit_rows, int max_aux_layers = 0,
            bool host_takes_logits = true);

  size_t bytes() const;  // of device memory

  int max_rows, max_logit_rows, max_aux_layers;

  // On the device. Heads, F and V are this rank's.
  DeviceArray<float> hidden;       // [T][D], the residual stream
  DeviceArray<std::byte> parts;    // what layers compute, a part at a time
  DeviceArray<std::byte> normed;   // [T or logit rows][D], for the head
  DeviceArray<float> logits;       // [logit rows][V of all ranks]
  DeviceArray<float> partial;      // [T][D]: before ranks are put together, or a norm
  ChosenSlots chosen;              // where layers have indexers
  DeviceArray<float> beside;       // [T][D]: of a network whose sum with another is normed
  DeviceArray<float> rank_logits;  // of several ranks, before they are put together
  DeviceArray<float> features;     // [T][features] of another decoder, or none
  // The vectors that tokens bring to each layer, and their contexts: [T][layers][P] each, or none.
  DeviceArray<float> layer_inputs, layer_contexts;
  DeviceArray<std::byte> quantised_bytes;    // what enters a product of integers or e4m3 numbers
  DeviceArray<bool> non_finite;              // [T]
  DeviceArray<std::byte> attention_scratch;  // Kernels::attention_scratch bytes
  DeviceArray<std::byte> blocks_scratch;     // Kernels::blocks_scratch bytes, for such weights
  // Views of the above.
  std::vector<LayerActivations> layers;  // they use the same memory in turn
  Activation final_normed;
  Activation quantised;  // of the widest row; none where no matrix is i8 or e4m3

  StepTableBuilder table_builder;
  StepTables tables;             // of the current step
  AdapterStep adapters;          // of the current step
  baseline::Attention baseline;  // of the baseline only
  Branch branch;

  // Host copies of results; unused where the host reads the device's memory itself.
  PinnedArray<float> host_logits, host_hidden, host_features, host_aux_hidden;
  PinnedArray<int32_t> host_experts;                   // [layers with experts][T][C]
  PinnedArray<bool> host_non_finite, last_non_finite;  // of this step, of the one before
  PinnedArray<bool> host_nan_flags;                    // of the layers before

 private:
  void place_parts(const Decoder& decoder);
  void place_quantised(const Decoder& decoder);
};

}  // namespace invar
