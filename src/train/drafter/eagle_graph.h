// An EAGLE-3 layer (Li et al. 2025) behind a frozen target, with its training-time test: step 0
// reads the target's hidden states, step s what the layer itself said in step s - 1, as when it
// drafts. Row p of every step reads the token at p + 1 and says the one at p + 2.
#pragma once

#include "model/rope_table.h"
#include "train/drafter/drafter_graph.h"
#include "train/drafter/unrolled_attention.h"

namespace invar {

class EagleGraph final : public DrafterGraph {
 public:
  EagleGraph(const DrafterSpec& spec, const OptimizerOptions& optimizer,
             const DrafterTarget& target, std::span<const int32_t> frequent, Device& device,
             DrafterMath& math);

  void publish() override;
  json::Value config() const override;
  std::vector<IntegerTensor> integers() const override;

 private:
  // The values of one step that the backward needs. Letters as in forward.cc; D is the drafter's
  // width.
  struct Step {
    FloatRows feature;       // [T][D]: the residual stream before the layer
    RoundedRows joined;      // [T][2D]: norms of the token's embedding and of the feature
    FloatRows qkv, d_qkv;    // [T][(H + 2G) * E], rotated
    RoundedRows attended;    // [T][H * E]
    FloatRows middle;        // [T][D]: the residual stream between attention and ffn
    RoundedRows ffn_normed;  // [T][D]
    FloatRows gate_up;       // [T][2F], columns paired
    RoundedRows gated;       // [T][F]
    FloatRows out;           // [T][D]: the residual stream after the layer
    RoundedRows normed;      // [T][D]
    RoundedRows d_logits;    // [T][the drafter's vocabulary]
  };
  struct Norms {
    std::vector<float> embedding, hidden, ffn, final;
  };

  void compute(const TargetRows& target, bool learns, bool begins,
               std::span<LevelScore> scores) override;
  void begin_batch(const TargetRows& target);
  void take_feature(int index);
  void layer(int index, const Batch& batch);
  void score(int index, const TargetRows& target, bool learns, LevelScore& score);
  void backward(const Batch& batch, bool begins);
  void head_backward(Step& step, bool begins);
  void ffn_backward(Step& step, bool begins);
  void attention_backward(int index, const Batch& batch, bool begins);
  void embedding_backward();

  Step make_step(DrafterMath& math) const;
  // Else it reads the target's.
  bool has_embedding() const { return layer_.hidden != target_.hidden; }
  // The number of a tensor among the parameters; without an embedding all others stand one place
  // earlier.
  int number(int tensor) const { return has_embedding() ? tensor : tensor - 1; }
  void add(FloatRows& y, const FloatRows& x) const;
  void gradient_of_norm(int tensor, const FloatRows& x, const std::vector<float>& weight,
                        FloatRows& dx);

  const DecoderSpec target_;
  const DecoderSpec layer_;  // of the one layer
  const UnrolledShape shape_;
  const std::vector<int32_t> frequent_;
  std::vector<int32_t> known_as_;          // by the target's token: the drafter's, or -1
  std::vector<bf16_t> targets_embedding_;  // or empty
  RopeTable rope_;
  Norms norms_;
  TrainedMatrix fuse_, qkv_, o_, gate_up_, down_, head_;
  std::vector<Step> steps_;

  // The current batch.
  std::vector<int32_t> tokens_, positions_;  // that step 0 reads: those that follow
  RoundedRows features_;                     // [T][3 * the target's width]
  FloatRows embedded_, logits_, teacher_logits_;
  std::vector<int32_t> wanted_;
  // Gradients of what the names say, and f32 sides of products.
  FloatRows d_hidden_, d_normed_, d_gated_, d_attended_, d_embedded_, attended_;
  RoundedRows d_out_, d_gate_up_, d_qkv_;
};

}  // namespace invar
