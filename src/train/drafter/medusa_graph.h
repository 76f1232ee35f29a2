// Medusa heads (Cai et al. 2024) behind a frozen target, "Medusa-1". Head i reads the target's last
// hidden state behind its final norm, x, and says the token i + 2 further on:
// logits = head(x + silu(block(x))). The block begins as zero and the head as the target's.
#pragma once

#include "train/drafter/drafter_graph.h"

namespace invar {

class MedusaGraph final : public DrafterGraph {
 public:
  MedusaGraph(const DrafterSpec& spec, const OptimizerOptions& optimizer,
              const DrafterTarget& target, Device& device, DrafterMath& math);

  void publish() override;
  json::Value config() const override;

 private:
  void compute(const TargetRows& target, bool learns, bool begins,
               std::span<LevelScore> scores) override;
  void add_block(const float* dots);
  void block_backward(const float* dots, const float* dy);

  const DecoderSpec target_;
  const float* final_norm_;
  std::vector<TrainedMatrix> blocks_, heads_;
  // Arrays of one head at a time.
  FloatRows dots_, d_mixed_, logits_;
  RoundedRows normed_, mixed_, d_dots_, d_logits_;
};

}  // namespace invar
