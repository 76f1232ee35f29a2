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
  if (p.last_update.tokens > 0) {
    line.set("last_update_k3", p.last_update.k3);
    line.set("last_update_clip_fraction", p.last_update.clip_fraction);
  }
  if (m.routes > 0) {
    line.set("routes", m.routes);
    line.set("different_routes", m.different_routes);
  }
  if (p.evaluation >= 0) line.set("evaluation", p.evaluation);
  file_.write(std::move(line));
}

Curve RlMetrics::curve(const std::string& name, const char* key) const {
  Curve curve{name, {}};
  for (const json::Value& line : file_.lines())
    if (const json::Value* value = line.find(key))
      curve.points.emplace_back(line.find("step")->as_number(), value->as_number());
  return curve;
}

void RlMetrics::draw(const std::string& title) const {
  const Plot reward{.title = title + ": reward",
                    .x_title = "step",
                    .y_title = "mean reward",
                    .curves = {curve("of the step", "reward"), curve("held out", "evaluation")}};
  const Plot mismatch{
      .title = "Sampler against trainer",
      .x_title = "step",
      .y_title = "nats",
      .curves = {curve("KL (k3)", "k3"), curve("largest |difference|", "largest_difference")},
      .logarithmic = true};
  const Plot entropy{.title = "Entropy",
                     .x_title = "step",
                     .y_title = "nats per token",
                     .curves = {curve("entropy", "entropy")}};
  write_file_atomically((directory_ / "curves.svg").string(),
                        plots_svg({reward, mismatch, entropy}));
}

double RlMetrics::first_evaluation() const {
  const Curve all = curve("", "evaluation");
  return all.points.empty() ? -1 : all.points.front().second;
}

double RlMetrics::last_evaluation() const {
  const Curve all = curve("", "evaluation");
  return all.points.empty() ? -1 : all.points.back().second;
}

}  // namespace invar::rl
