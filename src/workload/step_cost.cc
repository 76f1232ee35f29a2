#include "workload/step_cost.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "workload/load_run.h"

namespace invar {

namespace {

class ModelClock final : public LoadClock {
 public:
  explicit ModelClock(const StepCost& cost) : cost_(cost) {}
  double now() override { return now_; }
  void wait_until(double time) override { now_ = std::max(now_, time); }
  void after_step(const StepWork& work) override { now_ += cost_.seconds(work); }

 private:
  StepCost cost_;
  double now_ = 0;
};

// Numbers of rows between which a step's time is a straight line: products go by tiles of rows.
std::vector<int> knots_up_to(int most) {
  std::vector<int> knots = {1};
  for (const int knot : {8, 16, 32, 64, 128, 192, 256, 384, 512, 768})
    if (knot < most) knots.push_back(knot);
  for (int knot = 1024; knot < most; knot *= 2) knots.push_back(knot);
  if (most > knots.back()) knots.push_back(most);
  return knots;
}

// What a step's seconds are a sum of, by the coefficients: a constant, the part of the rows between
// every two knots, samples, slots of prompts and of decodes.
class Terms {
 public:
  explicit Terms(int most_rows) : knots_(knots_up_to(most_rows)) {}

  size_t count() const { return knots_.size() + 3; }
  std::vector<double> of(const StepWork& work) const {
    std::vector<double> terms = {1};
    for (size_t i = 1; i < knots_.size(); ++i)
      terms.push_back(std::clamp(work.rows() - knots_[i - 1], 0, knots_[i] - knots_[i - 1]));
    terms.insert(terms.end(), {double(work.samples), double(work.prompt_slots),
                               static_cast<double>(work.decode_slots)});
    return terms;
  }
  StepCost cost(const std::vector<double>& by_term) const {
    StepCost cost{.rows = {{1, by_term[0]}}};
    for (size_t i = 1; i < knots_.size(); ++i)
      cost.rows.emplace_back(knots_[i],
                             cost.rows.back().second + by_term[i] * (knots_[i] - knots_[i - 1]));
    const size_t n = knots_.size();
    cost.per_sample = by_term[n];
    cost.per_prompt_slot = by_term[n + 1];
    cost.per_decode_slot = by_term[n + 2];
    return cost;
  }

 private:
  std::vector<int> knots_;
};

// x >= 0 with the least x' a x / 2 - b' x, by coordinates in turn. `a` is symmetric, row by row.
std::vector<double> least_squares(const std::vector<double>& a, const std::vector<double>& b) {
  constexpr int kSweeps = 4000;
  const size_t n = b.size();
  std::vector<double> x(n, 0);
  for (int sweep = 0; sweep < kSweeps; ++sweep)
    for (size_t i = 0; i < n; ++i) {
      if (a[i * n + i] <= 0) continue;
      double gradient = -b[i];
      for (size_t j = 0; j < n; ++j) gradient += a[i * n + j] * x[j];
      x[i] = std::max(0.0, x[i] - gradient / a[i * n + i]);
    }
  return x;
}

StepCost fit(const Terms& terms, const std::vector<MeasuredStep>& steps) {
  const size_t n = terms.count();
  // Terms as shares of their largest value: their sizes differ by many orders.
  std::vector<double> scale(n, 0), a(n * n, 0), b(n, 0);
  for (const MeasuredStep& s : steps) {
    const std::vector<double> t = terms.of(s.work);
    for (size_t i = 0; i < n; ++i) scale[i] = std::max(scale[i], t[i]);
  }
  for (double& s : scale) s = std::max(s, 1.0);
  for (const MeasuredStep& s : steps) {
    const std::vector<double> t = terms.of(s.work);
    for (size_t i = 0; i < n; ++i) {
      b[i] += t[i] / scale[i];
      for (size_t j = 0; j < n; ++j) a[i * n + j] += t[i] / scale[i] * t[j] / scale[j] / s.seconds;
    }
  }
  std::vector<double> x = least_squares(a, b);
  for (size_t i = 0; i < n; ++i) x[i] /= scale[i];
  return terms.cost(x);
}

double error_of(const StepCost& cost, const MeasuredStep& step) {
  return std::abs(cost.seconds(step.work) - step.seconds) / step.seconds;
}

}  // namespace

double StepCost::seconds(const StepWork& work) const {
  const int n = work.rows();
  const auto above =
      std::find_if(rows.begin(), rows.end(), [&](const auto& knot) { return knot.first >= n; });
  double sum = per_sample * work.samples +
               per_prompt_slot * static_cast<double>(work.prompt_slots) +
               per_decode_slot * static_cast<double>(work.decode_slots);
  if (above == rows.begin()) return sum + above->second;
  if (rows.size() == 1) return sum + rows[0].second;
  // Beyond the last number the last line goes on.
  const auto high = above == rows.end() ? rows.end() - 1 : above, low = high - 1;
  const double slope = (high->second - low->second) / (high->first - low->first);
  return sum + low->second + slope * (n - low->first);
}

json::Value StepCost::to_json() const {
  json::Array knots;
  for (const auto& [number, seconds] : rows) knots.push_back(json::Array{number, seconds});
  return json::Object{{"seconds_by_rows", std::move(knots)},
                      {"seconds_per_sample", per_sample},
                      {"seconds_per_prompt_slot", per_prompt_slot},
                      {"seconds_per_decode_slot", per_decode_slot},
                      {"steps", steps},
                      {"mean_error", error}};
}

StepCost fit_step_cost(std::span<const MeasuredStep> measured) {
  std::vector<MeasuredStep> steps;
  for (const MeasuredStep& s : measured)
    if (s.seconds > 0) steps.push_back(s);
  if (steps.empty()) fail("expected measured steps to fit a cost model to, found none");
  int most = 1;
  for (const MeasuredStep& s : steps) most = std::max(most, s.work.rows());
  const Terms terms(most);
  StepCost cost = fit(terms, steps);
  // Twice: what disturbs steps also disturbs the first fit.
  std::vector<MeasuredStep> kept = steps;
  for (int round = 0; round < 2; ++round) {
    std::vector<double> errors;
    for (const MeasuredStep& s : steps) errors.push_back(error_of(cost, s));
    const double bound = std::max(0.05, 5 * percentile(errors, 0.5));
    kept.clear();
    for (size_t i = 0; i < steps.size(); ++i)
      if (errors[i] <= bound) kept.push_back(steps[i]);
    if (kept.empty()) kept = steps;
    cost = fit(terms, kept);
  }
  cost.steps = std::ssize(kept);
  for (const MeasuredStep& s : kept)
    cost.error += error_of(cost, s) / static_cast<double>(kept.size());
  return cost;
}

std::unique_ptr<LoadClock> make_model_clock(const StepCost& cost) {
  return std::make_unique<ModelClock>(cost);
}

}  // namespace invar
