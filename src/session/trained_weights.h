// The weights of an engine that a trainer changes: a checkpoint's, under the tensors that came.
#pragma once

#include <set>
#include <span>
#include <string>

#include "engine/engine.h"
#include "session/weight_change.h"
#include "weights/weights_digest.h"

namespace invar {

class TrainedWeights {
 public:
  // Goes on with these tensors, between steps and while no request is live. Returns the digest of
  // all weights (numerics 8). Throws Error; the weights are then those of before, or, where the
  // device failed in the middle, the checkpoint's, and `any` is false.
  Digest take(Engine& engine, std::span<const GivenTensor> tensors);
  // Whether the weights are others than the checkpoint's.
  bool any() const { return !changed_.empty(); }
  // Another checkpoint has been taken.
  void forget();

 private:
  std::set<std::string, std::less<>> changed_;
  TensorDigests digests_;  // of every tensor, once some came
};

}  // namespace invar
