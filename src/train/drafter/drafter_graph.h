// A drafter that learns behind a frozen target: its forward over the target's rows, its losses and
// their gradients. One derived class for each method.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/json.h"
#include "model/batch.h"
#include "train/drafter/drafter_math.h"
#include "train/drafter/drafter_recipe.h"
#include "weights/checkpoint_writer.h"

namespace invar {

// The target's results for a batch.
struct TargetRows {
  const Batch& batch;
  std::span<const float> hidden;   // [aux_layers][T][the target's width]
  const Scores& scores;            // [T][V]
  std::span<const float> weights;  // [T]: what the token behind row t counts; 0: not learned
};

// How well a drafter says a token so many places further, over the tokens that count.
struct LevelScore {
  double loss = 0;     // sum of -log-probability of the target's likeliest token
  int64_t agreed = 0;  // where that is the drafter's likeliest one
  int64_t count = 0;
};

// Facts of its target that a drafter needs.
struct DrafterTarget {
  ModelConfig model;
  const TensorSource& weights;
  const float* final_norm;  // [width]
};

class DrafterGraph {
 public:
  virtual ~DrafterGraph() = default;

  DrafterParameters& parameters() { return *parameters_; }
  // Layers of the target after which it reads hidden states.
  std::span<const int32_t> aux_layers() const { return aux_layers_; }
  // Tokens that it says behind the one that the target is sure to say.
  int levels() const { return spec_.levels; }

  // Packs the parameters; after each change.
  virtual void publish() = 0;
  // Computes a batch. With `learns` the gradients of the losses are added to those of the
  // parameters; `begins`: they are the first ones of a step. Adds to the score of each level.
  void run(const TargetRows& target, bool learns, bool begins, std::span<LevelScore> scores);

  // config.json as it is published, and tensors of integers.
  virtual json::Value config() const = 0;
  virtual std::vector<IntegerTensor> integers() const { return {}; }

 protected:
  DrafterGraph(const DrafterSpec& spec, DrafterMath& math, std::vector<int32_t> aux_layers)
      : spec_(spec), math_(math), aux_layers_(std::move(aux_layers)) {}

  virtual void compute(const TargetRows& target, bool learns, bool begins,
                       std::span<LevelScore> scores) = 0;
  // The weight of row t when it says the token that the target says `shift` rows further at
  // `level`: 0 when that is in another sequence, or before row t is the sequence's row `from`.
  std::vector<float> weights_of(const TargetRows& target, int level, size_t shift, int from) const;
  // `wanted`: by row, the token that row t is to say; -1: one that the drafter does not know.
  static void add_score(const Scores& scores, std::span<const int32_t> wanted,
                        std::span<const float> weights, LevelScore& score);

  const DrafterSpec spec_;
  DrafterMath& math_;
  std::unique_ptr<DrafterParameters> parameters_;

 private:
  std::vector<int32_t> aux_layers_;
};

// `frequent`: the tokens that a drafter with a vocabulary of its own knows, ascending.
std::unique_ptr<DrafterGraph> make_drafter_graph(const DrafterSpec& spec,
                                                 const OptimizerOptions& optimizer,
                                                 const DrafterTarget& target,
                                                 std::span<const int32_t> frequent, Device& device,
                                                 DrafterMath& math);

}  // namespace invar
