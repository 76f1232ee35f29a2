// The forward of an EAGLE drafter's one layer, on the CPU: rows of tokens and features in, rows of
// the residual stream out. Keys and values are the caller's: it says for each row what that reads,
// so that stable rows and branches of a tree are the same here.
#pragma once

#include <span>
#include <vector>

#include "drafters/eagle_weights.h"

namespace invar {

// Keys and values that stand one after the other: [count][key/value heads * head size] each.
struct KvRun {
  const float* keys = nullptr;
  const float* values = nullptr;
  int32_t count = 0;
};

class EagleLayer {
 public:
  // Both live as long.
  EagleLayer(const EagleWeights& weights, HostProducts& products, ThreadPool& pool);

  // Features of rows of the target: `hidden` has [rows][features][the target's width]. EAGLE-3
  // fuses them; else they stay as they are, behind the target's final norm.
  std::vector<float> fuse(std::span<const float> hidden);

  // Computes rows up to their queries, keys and values. features: [rows][width].
  void begin(std::span<const int32_t> tokens, std::span<const int32_t> positions,
             std::span<const float> features);
  std::span<const float> key(size_t row) const { return kv_row(row, 0); }
  std::span<const float> value(size_t row) const { return kv_row(row, 1); }
  // The rest of the layer: row t attends to runs[t], which end with itself. [rows][width].
  std::span<const float> finish(std::span<const std::vector<KvRun>> runs);

  // Logits of the target's vocabulary, -inf for what the drafter does not know: [rows][vocabulary].
  std::vector<float> logits(std::span<const float> hidden);

 private:
  void join(std::span<const int32_t> tokens, std::span<const float> features);
  void rotate(float* row, int32_t position);
  void attend(size_t row, int32_t head, std::span<const KvRun> runs, std::vector<float>& scores);
  std::span<const float> kv_row(size_t row, int which) const;

  const EagleWeights& w_;
  HostProducts& products_;
  ThreadPool& pool_;
  const int32_t width_, query_width_, kv_width_, head_dim_;
  const std::vector<double> frequencies_;
  std::vector<float> cos_, sin_;  // of the row that is rotated
  // Of the rows between begin and finish.
  std::vector<float> joined_, residual_, qkv_, attended_, out_, gate_up_, gated_;
  std::vector<std::vector<float>> scores_;  // by thread
};

}  // namespace invar
