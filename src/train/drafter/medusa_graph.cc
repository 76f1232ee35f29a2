#include "train/drafter/medusa_graph.h"

#include <fmt/format.h>

#include "numerics/math.h"

namespace invar {

namespace {

std::vector<DrafterTensor> tensors_of(int heads, const DecoderSpec& target) {
  const int64_t d = target.hidden, v = target.vocab;
  std::vector<DrafterTensor> tensors;
  for (int i = 0; i < heads; ++i) {
    tensors.push_back({.name = fmt::format("blocks.{}.layers.0.weight", i), .shape = {d, d}});
    tensors.push_back(
        {.name = fmt::format("lm_heads.{}.weight", i),
         .shape = {v, d},
         .copied_from = target.tied_head ? "model.embed_tokens.weight" : "lm_head.weight"});
  }
  return tensors;
}

}  // namespace

MedusaGraph::MedusaGraph(const DrafterSpec& spec, const OptimizerOptions& optimizer,
                         const DrafterTarget& target, Device& device, DrafterMath& math)
    : DrafterGraph(spec, math, {target.model.spec.layers - 1}),
      target_(target.model.spec),
      final_norm_(target.final_norm),
      dots_(math.floats(target_.hidden)),
      d_mixed_(math.floats(target_.hidden)),
      logits_(math.floats(target_.vocab)),
      normed_(math.rounded(target_.hidden)),
      mixed_(math.rounded(target_.hidden)),
      d_dots_(math.rounded(target_.hidden)),
      d_logits_(math.rounded(target_.vocab)) {
  parameters_ = std::make_unique<DrafterParameters>(tensors_of(spec.levels, target_), optimizer,
                                                    math.training(), device);
  for (int i = 0; i < spec.levels; ++i) {
    blocks_.push_back(math.matrix(2 * i, target_.hidden, target_.hidden, 0));
    heads_.push_back(math.matrix(2 * i + 1, target_.vocab, target_.hidden, 1));
  }
}

void MedusaGraph::publish() {
  for (const TrainedMatrix& block : blocks_) math_.pack(*parameters_, block);
  for (const TrainedMatrix& head : heads_) math_.pack(*parameters_, head);
}

void MedusaGraph::compute(const TargetRows& target, bool learns, bool begins,
                          std::span<LevelScore> scores) {
  const Activation x = normed_.activation(), mixed = mixed_.activation();
  math_.norm(target.hidden.data(), final_norm_, target_.norm_eps, target_.hidden, x);
  std::vector<int32_t> wanted(target.batch.rows.size());
  for (int i = 0; i < levels(); ++i) {
    const size_t shift = static_cast<size_t>(i) + 1;
    math_.product(x, blocks_[i].forward, dots_.data());
    add_block(dots_.data());
    math_.product(mixed, heads_[i].forward, logits_.data());
    const Scores own = math_.scores_of(logits_.data(), target_.vocab);
    const std::vector<float> weights = weights_of(target, i, shift, 0);
    for (size_t t = 0; t + shift < wanted.size(); ++t) wanted[t] = target.scores.argmax[t + shift];
    add_score(own, wanted, weights, scores[i]);
    if (!learns) continue;
    math_.loss_gradient(own, target.scores, static_cast<int64_t>(shift), weights, d_logits_);
    math_.product(d_logits_.activation(), heads_[i].backward[0], d_mixed_.data());
    math_.weight_gradient(*parameters_, heads_[i], d_logits_.activation(), mixed, begins);
    block_backward(dots_.data(), d_mixed_.data());
    math_.weight_gradient(*parameters_, blocks_[i], d_dots_.activation(), x, begins);
  }
}

// mixed = bf16(x + silu(z)), z = block(x)
void MedusaGraph::add_block(const float* dots) {
  const int64_t d = target_.hidden, stride = activation_stride(d);
  math_.for_rows([&](int64_t t) {
    const bf16_t* x = normed_.memory.data() + t * stride;
    bf16_t* y = mixed_.memory.data() + t * stride;
    const float* z = dots + t * d;
    for (int64_t i = 0; i < d; ++i)
      y[i] = f32_to_bf16(bf16_to_f32(x[i]) + z[i] / (1.0f + math::exp(-z[i])));
  });
}

// d_dots = bf16(dy * silu'(z)), silu'(z) = s * (1 + z * (1 - s)), s = 1 / (1 + exp(-z))
void MedusaGraph::block_backward(const float* dots, const float* dy) {
  const int64_t d = target_.hidden, stride = activation_stride(d);
  math_.for_rows([&](int64_t t) {
    bf16_t* out = d_dots_.memory.data() + t * stride;
    for (int64_t i = t * d; i < (t + 1) * d; ++i) {
      const float s = 1.0f / (1.0f + math::exp(-dots[i]));
      *out++ = f32_to_bf16(dy[i] * (s * __builtin_fmaf(dots[i], 1.0f - s, 1.0f)));
    }
  });
}

json::Value MedusaGraph::config() const {
  return json::Object{{"architectures", json::Array{"MedusaModel"}},
                      {"model_type", "medusa"},
                      {"hidden_size", target_.hidden},
                      {"vocab_size", target_.vocab},
                      {"num_heads", levels()},
                      {"num_hidden_layers", 1},
                      {"max_paths", 64},
                      {"torch_dtype", "bfloat16"}};
}

}  // namespace invar
