// A layer is a list of parts: attention, then a feed-forward network; before them a join, where it
// goes on from hidden states. Each reads the residual
// stream and adds to it. A part's file says its mathematics, its tensors (which also say how ranks
// cut it), what it computes on its way, and its backward.
#pragma once

#include <span>
#include <vector>

#include "model/families/tensor_table.h"

namespace invar {

struct LayerPass;
struct Decoder;
struct LayerActivations;
class ActivationMemory;
class BackwardPass;

struct LayerPart {
  bool (*is_in)(const LayerSpec&);
  std::span<const TensorRow> tensors;
  // Takes memory for what the part computes in a layer.
  void (*place)(ActivationMemory&, const Decoder&, int layer, LayerActivations&);
  void (*forward)(const LayerPass&);
  void (*backward)(BackwardPass&, int layer);
  // Why there is no backward of such a layer, or null.
  const char* (*refusal)(const DecoderSpec&, const LayerSpec&);
};

extern const LayerPart kJoin;
extern const LayerPart kResidualBlock;
extern const LayerPart kAttention;
extern const LayerPart kLatentAttention;
extern const LayerPart kDenseFfn;
extern const LayerPart kExperts;

// Of one layer, in the order in which they run.
std::vector<const LayerPart*> parts_of(const LayerSpec& layer);

// Throws Error, saying why, where a layer has no backward.
void expect_backward(const DecoderSpec& spec);
// The same, and where its weights could not be written as the family stores them.
void expect_trainable(const DecoderSpec& spec);

}  // namespace invar
