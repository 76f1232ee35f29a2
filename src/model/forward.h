// The forward pass: one function for prompts, generated tokens, drafts and training rows alike.
#pragma once

#include "collectives/group.h"
#include "kv/sequence_store.h"
#include "model/batch.h"
#include "model/decoder.h"
#include "model/forward_io.h"
#include "model/step_graphs.h"
#include "model/workspace.h"

namespace invar {

// Runs the batch's layers. Keys and values are written before anything attends to them. `graphs`,
// or null: the recorded steps of this decoder, workspace and storage, for batches that can be
// recorded.
// REQUIRES: rows <= workspace.max_rows, every block index valid, positions below the model's
// maximum.
void forward(Decoder& decoder, const Batch& batch, SequenceStore& kv, Workspace& workspace,
             Group& group, ForwardIo& io, StepGraphs* graphs = nullptr);

}  // namespace invar
