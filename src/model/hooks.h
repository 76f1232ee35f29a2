// Values that a forward shows and keeps on its way, beside its results: a trace of every operation,
// hidden states after some layers, and on a tape the activations that the backward needs. Each is
// off unless asked for.
#pragma once

#include <string_view>

#include "model/forward_io.h"
#include "model/workspace.h"

namespace invar {

class Hooks {
 public:
  Hooks(const Decoder& model, const Batch& batch, Workspace& ws, ForwardIo& io);

  // Where the activations of a layer's parts go: onto the tape, or into memory that all layers use
  // in turn.
  const LayerActivations& layer(int index) const;
  // The head's input, of the model or (1) of its module that predicts one token further.
  Activation final_normed(int module) const;

  // Whether somebody looks at every operation's output, which has to be there as a whole.
  bool is_traced() const { return io_.trace; }
  // Whether somebody looks at the residual stream after every part, or at that after a layer.
  bool wants_hidden() const { return io_.trace || io_.tape; }
  bool takes_hidden_after(int layer) const;

  // Keeps the residual stream where the tape has room for it.
  void keep_hidden(float* copy) const;
  void keep_output(int module) const;
  // Where the module's input is wanted, if it is what the final norm makes of the output, or null;
  // else the output is kept there.
  float* keep_module_input() const;
  // The residual stream after a layer, when the batch wants it.
  void after_layer(int layer) const;
  // Which experts rows go through in a layer, where the batch wants them: [T][C].
  void keep_experts(int layer, const int32_t* chosen) const;
  // All experts that rows went through, where the batch wants them, once the stream is waited for.
  std::span<const int32_t> experts() const;
  // All of these, of the stages so far, once the stream is waited for.
  std::span<const float> aux_hidden() const;

  // Records `rows` rows of an operation's output; see trace.h.
  void trace(std::string_view name, int layer, const float* values, int64_t width, int64_t rows,
             const int32_t* rows_of = nullptr) const;
  void trace(std::string_view name, int layer, const Activation& x, int64_t width, int64_t rows,
             const int32_t* rows_of = nullptr) const;

 private:
  void record(TracedOp op, const void* values, DType type) const;

  const Decoder& model_;
  const Batch& batch_;
  Workspace& ws_;
  ForwardIo& io_;
  const int64_t rows_;
};

}  // namespace invar
