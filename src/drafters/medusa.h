// Medusa heads: Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple
// Decoding Heads" (2024); method "medusa". Head i reads the target's last hidden state behind its
// final norm and predicts the token i + 2 further on: a residual block and a head of its own. No
// head sees what the others draft, so that their guesses make a tree: the likeliest few of each
// head below every node.
//
// It costs a head (vocabulary x width) for each level, where the target computes, and no keys and
// values. It pays with heads that were trained for the target. A draft that no head can give,
// behind a prefix-cached prompt's first row, is left out.
//
// Read are the published layout, medusa_lm_head.safetensors with {i}.{l}.linear.weight, .bias and
// {i}.{layers}.weight (also behind "medusa_head."), and vLLM's, model.safetensors with
// blocks.{i}.layers.{l}.weight and lm_heads.{i}.weight (also behind "medusa_heads.").
#pragma once

#include <memory>
#include <unordered_map>

#include "drafters/draft_decoder.h"
#include "drafters/draft_sampler.h"
#include "drafters/tensor_file.h"
#include "speculative/tree_shape.h"

namespace invar {

class Medusa final : public Proposer, public HiddenReader {
 public:
  // `shape` empty: a chain of all heads. Throws UsageError when the shape is deeper than there are
  // heads, Error for tensors that do not fit the target.
  Medusa(const std::string& directory, TreeShape shape, Model& target, ThreadPool& pool);

  std::string_view name() const override { return "medusa"; }
  int32_t most_nodes() const override { return static_cast<int32_t>(shape_.size()); }
  bool makes_branches() const override {
    return shape_ != chain_shape(static_cast<int32_t>(shape_.size()));
  }
  HiddenReader* hidden_reader() override { return this; }
  std::span<const int32_t> aux_layers() const override { return {&last_layer_, 1}; }
  void take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                   int64_t batch_rows) override;
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void forget(int64_t id) override { last_.erase(id); }

  int num_heads() const { return static_cast<int>(heads_.size()); }

 private:
  // The last row of a sequence that the target computed.
  struct Last {
    int32_t position = 0;
    std::vector<float> hidden;
  };

  void load(const std::string& directory, Model& target);
  void make(uint64_t seed, Model& target);
  bool load_head(const TensorFile& file, const TensorSource& target_weights, Model& target);
  DecoderSpec head_spec(const Model& target, const std::vector<bool>& biases) const;
  void sample_level(DraftDecoder& head, std::span<DraftPoint> points, std::span<const float> x);
  DraftTree tree_of(std::span<const std::vector<DraftPoint>> points, size_t draft,
                    int32_t most) const;

  const int32_t last_layer_, width_;
  ThreadPool& pool_;
  TreeShape shape_;
  DraftSampler sampler_;
  std::vector<std::unique_ptr<DraftDecoder>> heads_;
  std::unordered_map<int64_t, Last> last_;
};

}  // namespace invar
