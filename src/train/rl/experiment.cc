#include "train/rl/experiment.h"

#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "train/rl/rl_metrics.h"

namespace invar::rl {

namespace {

namespace fs = std::filesystem;

double mean(const std::vector<std::pair<double, double>>& points, size_t from = 0) {
  double sum = 0;
  for (size_t i = from; i < points.size(); ++i) sum += points[i].second;
  return points.size() > from ? sum / static_cast<double>(points.size() - from) : 0;
}

// Means of up to `width` neighbours, so that curves of rewards can be told apart.
Curve smoothed(Curve curve, size_t width) {
  std::vector<std::pair<double, double>> points;
  for (size_t i = 0; i < curve.points.size(); ++i) {
    const size_t first = i + 1 > width ? i + 1 - width : 0;
    double sum = 0;
    for (size_t j = first; j <= i; ++j) sum += curve.points[j].second;
    points.emplace_back(curve.points[i].first, sum / static_cast<double>(i + 1 - first));
  }
  curve.points = std::move(points);
  return curve;
}

VariantResult summary(const std::string& name, const RlResult& result, const RlMetrics& metrics) {
  const auto of = [&](const char* key) { return metrics.curve("", key).points; };
  const auto rewards = of("reward"), differences = of("largest_difference");
  VariantResult v{.name = name, .result = result};
  v.last_reward = mean(rewards, rewards.size() - std::max<size_t>(rewards.size() / 10, 1));
  v.mean_k3 = mean(of("k3"));
  for (const auto& [step, d] : differences)
    v.largest_difference = std::max(v.largest_difference, d);
  v.clip_fraction = mean(of("clip_fraction"));
  const double routes = mean(of("routes"));
  if (routes > 0) v.different_routes = mean(of("different_routes")) / routes;
  return v;
}

}  // namespace

RlRecipe recipe_of(const RlRecipe& recipe, const Variant& variant) {
  RlRecipe one = recipe;
  one.name = variant.name;
  one.sampler = variant.sampler;
  one.policy.correction = variant.correction;
  one.runs.clear();
  return one;
}

std::vector<VariantResult> run_experiment(const RlRecipe& recipe, const RlOptions& options,
                                          const std::function<void(const std::string&)>& started) {
  Plot rewards{.title = recipe.name + ": reward, mean of the last 10 steps",
               .x_title = "step",
               .y_title = "mean reward"};
  Plot kl{.title = "KL between sampler and trainer",
          .x_title = "step",
          .y_title = "k3 (nats per token)",
          .logarithmic = true};
  Plot evaluations{
      .title = "Reward on held-out problems", .x_title = "step", .y_title = "mean reward"};
  std::vector<VariantResult> results;
  for (const Variant& variant : recipe.runs) {
    if (started) started(variant.name);
    RlOptions one = options;
    one.output = (fs::path(options.output) / variant.name).string();
    const RlResult result = run_rl(recipe_of(recipe, variant), one);
    if (result.stopped) return {};
    const RlMetrics metrics(one.output, result.steps);
    rewards.curves.push_back(smoothed(metrics.curve(variant.name, "reward"), 10));
    kl.curves.push_back(metrics.curve(variant.name, "k3"));
    evaluations.curves.push_back(metrics.curve(variant.name, "evaluation"));
    results.push_back(summary(variant.name, result, metrics));
    std::vector<Plot> plots = {rewards, kl};
    if (evaluations.curves[0].points.size() > 2) plots.push_back(evaluations);
    write_file_atomically((fs::path(options.output) / "experiment.svg").string(), plots_svg(plots));
  }
  return results;
}

}  // namespace invar::rl
