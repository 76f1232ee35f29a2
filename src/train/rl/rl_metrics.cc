#include "train/rl/rl_metrics.h"

#include <cmath>

#include "base/atomic_file.h"

namespace invar::rl {

RlMetrics::RlMetrics(const std::filesystem::path& directory, int64_t step)
    : directory_(directory), file_(directory, step) {}

void RlMetrics::write_first(double evaluation) {
  json::Value line = json::Object{{"step", 0}};
  if (evaluation >= 0) line.set("evaluation", evaluation);
  file_.write(std::move(line));
}

void RlMetrics::write(const RlProgress& p) {
  const Mismatch& m = p.mismatch;
  json::Value tasks{json::Object{}};
  for (size_t i = 0; i < kTaskNames.size(); ++i)
    if (!std::isnan(p.task_rewards[i])) tasks.set(kTaskNames[i], p.task_rewards[i]);
  json::Value line = json::Object{{"step", p.report.step},
                                  {"reward", p.reward},
                                  {"task_rewards", std::move(tasks)},
                                  {"entropy", p.entropy},
                                  {"k1", m.k1},
                                  {"k2", m.k2},
                                  {"k3", m.k3},
                                  {"largest_difference", m.largest_difference},
                                  {"different_tokens", m.different},
                                  {"tokens", m.tokens},
                                  {"smallest_ratio", m.smallest_ratio},
                                  {"largest_ratio", m.largest_ratio},
                                  {"ratio_deviation", m.ratio_deviation},
                                  {"clip_fraction", m.clip_fraction},
                                  {"loss", p.report.loss},
                                  {"gradient_norm", p.report.gradient_norm},
                                  {"rate", p.report.rate},
                                  {"answer_tokens", p.answer_tokens},
                                  {"ended", p.ended},
                                  {"rollout_seconds", p.rollout_seconds},
                                  {"training_seconds", p.training_seconds}};
  if (p.evaluation >= 0) line.set("evaluation", p.evaluation);
  file_.write(std::move(line));
}

Curve RlMetrics::curve(const std::string& name, const std::string& color, const char* key) const {
  Curve curve{name, color, {}};
  for (const json::Value& line : file_.lines())
    if (const json::Value* value = line.find(key))
      curve.points.emplace_back(line.find("step")->as_number(), value->as_number());
  return curve;
}

void RlMetrics::draw(const std::string& title) const {
  write_file_atomically(
      (directory_ / "curves.svg").string(),
      panels_svg(
          {{title + ": reward",
            {curve("of the step", "#888", "reward"),
             curve("held-out problems", "#c33", "evaluation")}},
           {"KL between sampler and trainer (k3), largest |difference| of log-probabilities",
            {curve("k3", "#36c", "k3"), curve("largest difference", "#c80", "largest_difference")},
            true},
           {"entropy, nats per token", {curve("entropy", "#393", "entropy")}}}));
}

double RlMetrics::first_evaluation() const {
  const Curve all = curve("", "", "evaluation");
  return all.points.empty() ? -1 : all.points.front().second;
}

double RlMetrics::last_evaluation() const {
  const Curve all = curve("", "", "evaluation");
  return all.points.empty() ? -1 : all.points.back().second;
}

}  // namespace invar::rl
