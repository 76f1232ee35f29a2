// Inputs and results of a forward beside its batch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "device/stream.h"
#include "model/operation_times.h"
#include "model/tape.h"
#include "model/trace.h"

namespace invar {

// Spans point into the workspace and live until its next step.
struct ForwardIo {
  Trace* trace = nullptr;           // records every operation when set
  OperationTimes* times = nullptr;  // adds up the time of each operation when set
  Tape* tape = nullptr;  // keeps what the backward needs when set; all rows want logits then
  // Where the tokens of the step before lie on the device, for rows that name one of them.
  const int32_t* sampled = nullptr;
  // Leave the logits on the device and do not wait for it: what the host is to read here is there
  // once the decoder's stream has been waited for.
  bool keep_logits = false;
  // Takes the logits when set, in pieces of what the workspace has room for: the number of the
  // first and their rows, in the batch's order (host memory, until it returns). `logits` stays
  // empty then, and a batch may want more than there is room for.
  std::function<void(int64_t first, std::span<const float> logits)> take_logits;
  // Out: [logit_rows][V], in the batch's order (host memory). Empty unless the last layer ran, and
  // with keep_logits.
  std::span<const float> logits;
  const float* device_logits = nullptr;  // out: where the same lie on the device
  // Out: [aux_layers][T][D]: the residual stream after each of these layers (host memory).
  std::span<const float> aux_hidden;
  // Out, where the batch wants them: [layers with experts][T][C], which experts each row went
  // through, ascending (host memory).
  std::span<const int32_t> experts = {};
  // In, on the CPU: the same, of which rows are to go through these experts whatever their routers
  // say, but where the first of a row in a layer is negative. Empty: as the routers say.
  std::span<const int32_t> given_experts = {};
  // In, of a later stage: what `non_finite` said of the layers before, where that is to be said
  // of these, too. Empty: nothing, as with layer 0.
  std::span<const bool> nan_flags;
  // [T][D], the residual stream (host memory): out when layer_end < layers; in of a later stage,
  // from the one before, where the batch has no features.
  std::span<float> hidden;
  // In when layer_begin > 0, in place of those: the same where the decoder's device has it. Nothing
  // of the residual stream comes out then.
  const float* device_hidden = nullptr;
  // Input on a device: `hidden` is copied straight from its memory, which is as good as
  // pinned, until this event; null: by way of the workspace.
  Event* hidden_taken = nullptr;
  // In, of a device: where it is to come out, as good as pinned; null: in the workspace.
  float* hidden_out = nullptr;
  // Out: per row, whether a key or value was not finite or a logit is NaN; such a request fails.
  // Lives a step longer than the others.
  std::span<const bool> non_finite;
};

}  // namespace invar
