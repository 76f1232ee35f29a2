#include "train/drafter/drafter_graph.h"

#include "base/check.h"
#include "train/drafter/eagle_graph.h"
#include "train/drafter/medusa_graph.h"
#include "train/packed_batch.h"

namespace invar {

void DrafterGraph::run(const TargetRows& target, bool learns, bool begins,
                       std::span<LevelScore> scores) {
  const ScopedFlushToZero flush;
  const int64_t rows = std::ssize(target.batch.rows);
  CHECK(rows % kLeafPad == 0 && rows <= math_.max_rows(), "rows of a drafter's batch");
  math_.set_rows(rows);
  compute(target, learns, begins, scores);
}

std::vector<float> DrafterGraph::weights_of(const TargetRows& target, int level, size_t shift,
                                            int from) const {
  float share = 1;
  for (int i = 0; i < level; ++i) share *= spec_.decay;
  std::vector<float> weights(target.batch.rows.size());
  for (size_t t = 0; t < weights.size(); ++t)
    if (target.batch.rows[t].position >= from && has_row_after(target.batch, t, shift))
      weights[t] = target.weights[t + shift] * share;
  return weights;
}

void DrafterGraph::add_score(const Scores& scores, std::span<const int32_t> wanted,
                             std::span<const float> weights, LevelScore& score) {
  for (size_t t = 0; t < wanted.size(); ++t) {
    if (weights[t] == 0) continue;
    ++score.count;
    if (wanted[t] < 0) continue;
    score.agreed += scores.argmax[t] == wanted[t];
    score.loss -= scores.log_probability(t, wanted[t]);
  }
}

std::unique_ptr<DrafterGraph> make_drafter_graph(const DrafterSpec& spec,
                                                 const OptimizerOptions& optimizer,
                                                 const DrafterTarget& target,
                                                 std::span<const int32_t> frequent, Device& device,
                                                 DrafterMath& math) {
  if (spec.method == DrafterMethod::medusa)
    return std::make_unique<MedusaGraph>(spec, optimizer, target, device, math);
  return std::make_unique<EagleGraph>(spec, optimizer, target, frequent, device, math);
}

}  // namespace invar
