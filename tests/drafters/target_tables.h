// The target's embedding, head and final norm, as its checkpoint has them.
#pragma once

#include <memory>
#include <vector>

#include "engine/model_description.h"

namespace invar {

class TargetTables {
 public:
  explicit TargetTables(const Model& target)
      : source_(open_weights(target.options())), spec_(target.spec()) {}

  // The token's row of the embedding.
  void embed(int32_t token, float* out) const {
    source_->read("model.embed_tokens.weight", int64_t{token} * spec_.hidden, spec_.hidden,
                  DType::f32, out);
  }
  // [vocabulary][width]
  std::vector<bf16_t> head() const {
    std::vector<bf16_t> rows(static_cast<size_t>(int64_t{spec_.vocab} * spec_.hidden));
    source_->read(spec_.tied_head ? "model.embed_tokens.weight" : "lm_head.weight", 0,
                  std::ssize(rows), DType::bf16, rows.data());
    return rows;
  }
  std::vector<float> final_norm() const {
    std::vector<float> weight(static_cast<size_t>(spec_.hidden));
    source_->read("model.norm.weight", 0, spec_.hidden, DType::f32, weight.data());
    return weight;
  }

 private:
  std::unique_ptr<TensorSource> source_;
  const DecoderSpec spec_;
};

}  // namespace invar
