// The backward pass: from the gradient of the logits to that of every parameter, over the same
// batch as the forward that wrote the tape (numerics 9).
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "kv/sequence_store.h"
#include "model/adapter_gradients.h"
#include "model/backward_workspace.h"
#include "model/batch.h"
#include "model/decoder.h"
#include "model/gradient_places.h"
#include "model/operation_times.h"
#include "model/parameters.h"
#include "model/tape.h"
#include "model/transposed_weights.h"
#include "model/workspace.h"

namespace invar {

// Logits of an earlier residual stream, through the same final norm and head.
struct ExitGradient {
  int layers = 0;       // that have run: 1 .. spec.layers - 1
  Activation normed;    // [T][D], bf16: what entered the head
  Activation d_logits;  // [T][V], bf16
  // In and out: chains of their own, since each use of a tensor has one.
  float* head = nullptr;        // [V][D]
  float* final_norm = nullptr;  // [D]
};

// The module that predicts one token further, after a forward of its layer.
struct MtpGradient {
  const Batch* batch = nullptr;  // of that forward: the same rows with the tokens that follow
  // Rows that go on from what the module itself has left. Nothing goes back from them.
  std::span<const int32_t> own_rows = {};
  Activation d_logits;  // [T][V], bf16
  // In and out: chains of their own, as those of exits.
  float* head = nullptr;        // [V][D]
  float* embedding = nullptr;   // [V][D]
  float* final_norm = nullptr;  // [D], of a module that reads the stream behind it
};

struct BackwardIo {
  Tape* tape = nullptr;
  Activation d_logits;                  // [T][V], bf16
  std::span<const ExitGradient> exits;  // in the order of their layers, each layer once
  const MtpGradient* mtp = nullptr;     // null: no such module
  // In and out: the chains of every parameter's gradient, in the layout's order, gradient_size()
  // elements. They start as zeros and go on from batch to batch.
  float* gradients = nullptr;
  // Where they lie there; null: in the layout's order.
  const GradientPlaces* places = nullptr;
  // Called before a layer's gradient is begun and once this batch's part of it is whole, if set.
  std::function<void(int layer)> begin_layer, end_layer;
  // The adapter that all rows have. The layout then has its tensors alone, and the model's own are
  // frozen. Null: there is none.
  const AdapterGradients* adapter = nullptr;
  // The first batch: chains of matrices, the embedding apart, begin with +0 whatever `gradients`
  // holds.
  bool begins = false;
  // For a loss that balances experts (numerics 9): its weight beside the others; 0: there is none.
  // It looks at every so many rows, which are a packed row's.
  double balance = 0;
  int64_t balance_rows = 1;
  // Needed when the tape recomputes: what the forward was given (ForwardIo), and its workspace.
  std::span<const int32_t> given_experts = {};
  Workspace* forward_workspace = nullptr;
  OperationTimes* times = nullptr;  // adds up the time of each operation when set
};

// REQUIRES: `tape` was written by forward over `batch`; every sequence of the batch is whole, from
// position 0 on, no drafts; the number of rows is a multiple of 32; the keys and values are still
// in `kv`.
void backward(Decoder& decoder, const TransposedWeights& transposed, const TrainingKernels& kernels,
              const ParameterLayout& layout, const Batch& batch, SequenceStore& kv,
              BackwardWorkspace& workspace, BackwardIo& io);

}  // namespace invar
