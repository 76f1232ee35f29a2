// Parts of the target that drafters of a few matrices read beside its forward.
#pragma once

#include <memory>
#include <vector>

#include "engine/model.h"
#include "weights/tensor_source.h"

namespace invar {

// The target's final norm, as the host reads it.
std::vector<float> final_norm_of(Model& target);

// The target's embedding and head as its checkpoint has them. Weights that the target takes later
// (RL) are not seen: drafts become worse then, and no answer changes.
class TargetTables {
 public:
  explicit TargetTables(const Model& target);

  // The token's row of the embedding: `width` numbers.
  void embed(int32_t token, float* out) const;
  // [vocabulary][width]
  std::vector<bf16_t> head() const;

 private:
  std::unique_ptr<TensorSource> source_;
  const int32_t vocab_, width_;
  const bool is_tied_;  // the head is the embedding
};

}  // namespace invar
