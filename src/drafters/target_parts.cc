#include "drafters/target_parts.h"

#include "engine/model_description.h"

namespace invar {

namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

}  // namespace

std::vector<float> final_norm_of(Model& target) {
  const Worker& home = target.workers().home();
  std::vector<float> weight(static_cast<size_t>(target.spec().hidden));
  home.device().download(weight.data(), home.weights().final_norm(), weight.size() * sizeof(float));
  return weight;
}

TargetTables::TargetTables(const Model& target)
    : source_(open_weights(target.options())),
      vocab_(target.spec().vocab),
      width_(target.spec().hidden),
      is_tied_(target.spec().tied_head) {}

void TargetTables::embed(int32_t token, float* out) const {
  source_->read(kEmbedding, int64_t{token} * width_, width_, DType::f32, out);
}

std::vector<bf16_t> TargetTables::head() const {
  std::vector<bf16_t> rows(static_cast<size_t>(int64_t{vocab_} * width_));
  source_->read(is_tied_ ? kEmbedding : kHead, 0, std::ssize(rows), DType::bf16, rows.data());
  return rows;
}

}  // namespace invar
