// A supply brings a decoder's weights to where its pointers say before they are computed with,
// where not all are there at once: for a trainer whose ranks hold a part each. All ranks of a group
// compute the same layers in the same order, so that they may supply them together.
#pragma once

namespace invar {

class WeightSupply {
 public:
  virtual ~WeightSupply() = default;
  virtual void need_embedding() = 0;
  virtual void need_layer(int layer) = 0;
  // The final norm too.
  virtual void need_head() = 0;
  // The same for the backward: matrices the other way round, and a layer's vectors.
  virtual void need_layer_backward(int layer) = 0;
  virtual void need_head_backward() = 0;
};

}  // namespace invar
