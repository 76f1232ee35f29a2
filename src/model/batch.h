// The waist of the engine: everything that the forward is asked to do in one step, as plain data.
// The server, the speculative methods, the trainer and the tests all build this struct; below it
// nobody knows whether a row is part of a prompt, a generated token, a draft or a training example.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/layout.h"
#include "kv/rows.h"

namespace invar {

// An adapter that comes into a slot, in place of what was there, before the rows are computed.
struct AdapterLoad {
  static constexpr int kMostSlots = 1024;

  int32_t slot = 0;
  int32_t rank = 1;       // the largest of its modules
  std::string directory;  // as PEFT saves it, or a GGUF file
  std::string digest;     // LoraAdapter::digest, in hexadecimal
  bool operator==(const AdapterLoad&) const = default;
};

struct Batch {
  std::vector<BatchRow>
      rows;  // rows of one sequence stand together, positions ascending along each path
  std::vector<BatchSequence> sequences;
  std::vector<int32_t>
      logit_rows;  // ascending row indices whose logits are wanted, in output order
  std::vector<int32_t>
      aux_layers;  // ascending; the hidden state after this layer is kept for every row
  // Done before the rows, one after the other: of chunks and of states.
  std::vector<CellCopy> chunk_copies = {}, state_copies = {};
  std::vector<int32_t> scratch_blocks = {};  // blocks that the forward may overwrite: tails of
                                             // draft paths (see kv/placement.h)
  // Vectors that rows begin with (BatchRow::features). They are the residual stream before the
  // first layer of the range; or, where a decoder's first layer joins, hidden states of another
  // decoder, of which that layer makes its own.
  std::vector<float> features = {};
  bool fuses_features = false;  // the latter: JoinSpec::features times feature_width each
  // Layers [layer_begin, layer_end) are run. A range that begins at 0 embeds the tokens of rows
  // without features; a later one, or a layer that joins, needs features of every row. A range that
  // ends at the last layer makes logits, any other leaves ForwardIo::hidden. Layer spec.layers is
  // the module that predicts one token further: a range of it alone starts from the hidden states
  // after the last layer, the rows' tokens are then those that follow, and its logits are those of
  // the tokens after them.
  int32_t layer_begin = 0;
  int32_t layer_end = -1;  // -1: the last layer

  // Ascending; layers of the range that this step leaves out, for drafters. Neither the first nor
  // the last of the model.
  std::vector<int32_t> skipped_layers = {};

  // In this order; what was loaded by earlier batches is there still.
  std::vector<AdapterLoad> adapters = {};

  // Whether it is kept which experts every row went through (ForwardIo::experts).
  bool wants_experts = false;

  bool operator==(const Batch&) const = default;
};

// Checks what a forward relies on, for a batch that comes as bytes (base/fields.h). Throws Error.
// Blocks and layers are compared with the model where it is known.
void expect_valid(const Batch& batch);

}  // namespace invar
