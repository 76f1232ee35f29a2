// A layer is a list of parts: attention, then a feed-forward network; before them a join, where it
// goes on from hidden states. Each reads the residual stream and adds to it. A part's file says its
// mathematics, its tensors (which also say how ranks cut it), what it computes on its way, and its
// backward.
#pragma once

#include <memory>
#include <vector>

#include "kv/state_shape.h"
#include "model/parts/tensors.h"
#include "model/shard.h"

namespace invar {

class ActivationMemory;

// The weights and activations of a part: each part has types of its own. Weights live with the
// model's, activations with a step's workspace or a tape.
struct PartWeights {
  virtual ~PartWeights() = default;
};
struct PartActivations {
  virtual ~PartActivations() = default;
};

struct PartPass;  // see part_of.h
struct PartBackward;

// The decoder, layer and rank that a part belongs to. Decoder and shard live as long as the part.
struct PartPlace {
  const DecoderSpec& model;
  int layer;
  const Shard& shard;
};

class LayerPart {
 public:
  virtual ~LayerPart() = default;

  virtual std::unique_ptr<PartWeights> make_weights() const = 0;
  // In the order of computation.
  virtual void visit_tensors(PartWeights& weights, TensorVisitor& visitor) const = 0;
  // The matrix that it reads first, or null.
  virtual const Matrix* first_matrix(const PartWeights&) const { return nullptr; }
  // Bytes of its weights that one token leaves unread.
  virtual int64_t unread_bytes(const PartWeights&) const { return 0; }

  // The state that a sequence leaves in it.
  virtual StateShape state() const { return {}; }

  // Takes memory for what it computes.
  virtual std::unique_ptr<PartActivations> place(ActivationMemory& memory) const = 0;
  // Whether parts behind it in the layer read that, too.
  virtual bool is_read_later() const { return false; }

  // Takes its share of the residual stream before any part of the layer adds to that.
  virtual void begin(const PartPass&) const {}
  virtual void forward(const PartPass& pass) const = 0;
  virtual void backward(const PartBackward& pass) const = 0;
  // Why there is no backward of it, or null.
  virtual const char* refusal() const { return nullptr; }
};

using LayerParts = std::vector<std::unique_ptr<LayerPart>>;

using LayerActivations = std::vector<std::unique_ptr<PartActivations>>;

// Those of one layer, in the order in which they run.
LayerParts parts_of(const PartPlace& place);

// The states that a sequence leaves in each of some layers of a rank.
std::vector<StateShape> states_of(const DecoderSpec& spec, const Shard& shard, LayerRange layers);
// The states of a whole model, without a module that predicts further.
std::vector<StateShape> states_of(const DecoderSpec& spec);

// Whether a sequence leaves anything in cells.
bool has_states(const DecoderSpec& spec);

// Throws Error, saying why, where a layer has no backward.
void expect_backward(const DecoderSpec& spec);

}  // namespace invar
