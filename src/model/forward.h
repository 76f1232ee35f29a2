// The forward pass: one function for prompts, generated tokens, drafts and training rows alike.
#pragma once

#include <functional>
#include <span>

#include "collectives/group.h"
#include "kv/sequence_store.h"
#include "model/batch.h"
#include "model/decoder.h"
#include "model/operation_times.h"
#include "model/step_graphs.h"
#include "model/tape.h"
#include "model/trace.h"
#include "model/workspace.h"

namespace invar {

// Inputs and results of a step besides the batch. Spans point into the workspace and live until its
// next step.
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
  // In when layer_begin > 0: what `non_finite` said of the layers before, where that is to be said
  // of these, too. Empty: nothing, as with layer 0.
  std::span<const bool> nan_flags;
  // In, of a decoder whose first layer joins hidden states of another one: [T][features] of that;
  // or empty, and then `hidden` has [T][D] (host memory).
  std::span<const float> features = {};
  // In when layer_begin > 0, out when layer_end < layers: [T][D], the residual stream (host
  // memory).
  std::span<float> hidden;
  // In when layer_begin > 0, in place of `hidden`: the same where the decoder's device has it.
  // Nothing of the residual stream comes out then.
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

// Runs the batch's layers. Keys and values are written before anything attends to them. `graphs`,
// or null: the recorded steps of this decoder, workspace and storage, for batches that can be
// recorded.
// REQUIRES: rows <= workspace.max_rows, every block index valid, positions below the model's
// maximum.
void forward(Decoder& decoder, const Batch& batch, SequenceStore& kv, Workspace& workspace,
             Group& group, ForwardIo& io, StepGraphs* graphs = nullptr);

// Its two halves before the results, for who records the second one as a graph: the host's part,
// the tables; and the operations, which neither allocate nor wait when the group is of one rank.
// A recorded step can be launched again for every batch with as many rows and logit rows, whose
// tables lie where those of the recording lay (StepTables), once that batch is prepared.
void prepare_step(Decoder& decoder, const Batch& batch, SequenceStore& kv, Workspace& workspace,
                  Group& group, ForwardIo& io);
void launch_step(Decoder& decoder, const Batch& batch, SequenceStore& kv, Workspace& workspace,
                 Group& group, ForwardIo& io);

}  // namespace invar
