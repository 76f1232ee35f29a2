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

// Numbers between which a step's time is a straight line: products go by tiles of rows, attention
// of few slots does not fill a device.
constexpr double kRowKnots[] = {8,   16,  32,   64,   128,  192,  256,  384,
                                512, 768, 1024, 2048, 4096, 8192, 16384};
constexpr double kPromptKnots[] = {1 << 19}, kDecodeKnots[] = {1 << 14, 1 << 16};

std::vector<double> knots_between(double first, std::span<const double> knots, double last) {
  std::vector<double> found = {first};
  for (const double knot : knots)
    if (knot < last) found.push_back(knot);
  if (last > first) found.push_back(last);
  return found;
}

// The terms of a step's seconds, by the coefficients: a constant, samples, whether it is mixed, and
// of each curve the part between every two knots.
class Terms {
 public:
  explicit Terms(std::span<const MeasuredStep> steps) {
    double rows = 1, prompt = 0, decode = 0;
    for (const MeasuredStep& s : steps) {
      rows = std::max(rows, double(s.work.rows()));
      prompt = std::max(prompt, double(s.work.prompt_slots));
      decode = std::max(decode, double(s.work.decode_slots));
    }
    rows_ = knots_between(1, kRowKnots, rows);
    prompt_ = knots_between(0, kPromptKnots, prompt);
    decode_ = knots_between(0, kDecodeKnots, decode);
  }

  std::vector<double> of(const StepWork& work) const {
    std::vector<double> terms = {1, double(work.samples),
                                 double(work.prompt_rows > 0 && work.decode_rows > 0)};
    add_parts(rows_, work.rows(), terms);
    add_parts(prompt_, double(work.prompt_slots), terms);
    add_parts(decode_, double(work.decode_slots), terms);
    return terms;
  }
  StepCost cost(std::span<const double> by_term) const {
    StepCost cost{.per_sample = by_term[1], .mixed = by_term[2]};
    size_t at = 3;
    cost.rows = curve(rows_, by_term[0], by_term, at);
    cost.prompt_slots = curve(prompt_, 0, by_term, at);
    cost.decode_slots = curve(decode_, 0, by_term, at);
    return cost;
  }

 private:
  static void add_parts(std::span<const double> knots, double number, std::vector<double>& terms) {
    for (size_t i = 1; i < knots.size(); ++i)
      terms.push_back(std::clamp(number - knots[i - 1], 0.0, knots[i] - knots[i - 1]));
  }
  static CostCurve curve(std::span<const double> knots, double first,
                         std::span<const double> slopes, size_t& at) {
    CostCurve curve = {{knots[0], first}};
    for (size_t i = 1; i < knots.size(); ++i)
      curve.emplace_back(knots[i], curve.back().second + slopes[at++] * (knots[i] - knots[i - 1]));
    return curve;
  }

  std::vector<double> rows_, prompt_, decode_;
};

// x with a x = b for the chosen numbers, 0 for the others. `a` is symmetric, row by row.
std::vector<double> solve(std::vector<double> a, std::vector<double> b,
                          const std::vector<char>& chosen) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {
    if (chosen[i]) continue;
    for (size_t j = 0; j < n; ++j) a[i * n + j] = a[j * n + i] = i == j;
    b[i] = 0;
  }
  for (size_t i = 0; i < n; ++i) {
    a[i * n + i] *= 1 + 1e-12;  // terms that always come together share what they cost
    for (size_t k = i + 1; k < n; ++k) {
      const double share = a[k * n + i] / a[i * n + i];
      for (size_t j = i; j < n; ++j) a[k * n + j] -= share * a[i * n + j];
      b[k] -= share * b[i];
    }
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t j = i + 1; j < n; ++j) b[i] -= a[i * n + j] * b[j];
    b[i] /= a[i * n + i];
  }
  return b;
}

// x >= 0 with the least x' a x / 2 - b' x (Lawson and Hanson, chapter 23): the number that would
// gain most becomes one of the chosen, until none would; those that become negative leave them.
std::vector<double> least_squares(const std::vector<double>& a, const std::vector<double>& b) {
  const size_t n = b.size();
  std::vector<double> x(n, 0);
  std::vector<char> chosen(n, 0);
  for (size_t turn = 0; turn < 10 * n; ++turn) {
    size_t best = n;
    double most = 1e-9;
    for (size_t i = 0; i < n; ++i) {
      if (chosen[i] || a[i * n + i] <= 0) continue;
      double gain = b[i];
      for (size_t j = 0; j < n; ++j) gain -= a[i * n + j] * x[j];
      gain /= std::sqrt(a[i * n + i]);
      if (gain <= most) continue;
      most = gain;
      best = i;
    }
    if (best == n) break;
    chosen[best] = 1;
    for (;;) {
      const std::vector<double> next = solve(a, b, chosen);
      double way = 1;  // towards it, as far as none becomes negative
      for (size_t i = 0; i < n; ++i)
        if (chosen[i] && next[i] <= 0) way = std::min(way, x[i] / (x[i] - next[i]));
      for (size_t i = 0; i < n; ++i) x[i] += way * (next[i] - x[i]);
      if (way >= 1) break;
      for (size_t i = 0; i < n; ++i)
        if (chosen[i] && x[i] <= 1e-15) chosen[i] = 0, x[i] = 0;
    }
  }
  return x;
}

StepCost fit(const Terms& terms, const std::vector<MeasuredStep>& steps) {
  const size_t n = terms.of({}).size();
  // Terms as shares of their largest value: their sizes differ by many orders.
  std::vector<double> scale(n, 0), a(n * n, 0), b(n, 0);
  for (const MeasuredStep& s : steps) {
    const std::vector<double> t = terms.of(s.work);
    for (size_t i = 0; i < n; ++i) scale[i] = std::max(scale[i], t[i]);
  }
  for (double& s : scale) s = s > 0 ? s : 1;
  for (const MeasuredStep& s : steps) {
    std::vector<double> t = terms.of(s.work);
    for (size_t i = 0; i < n; ++i) t[i] /= scale[i] * s.seconds;
    for (size_t i = 0; i < n; ++i) {
      b[i] += t[i];
      for (size_t j = 0; j < n; ++j) a[i * n + j] += t[i] * t[j];
    }
  }
  std::vector<double> x = least_squares(a, b);
  for (size_t i = 0; i < n; ++i) x[i] /= scale[i];
  return terms.cost(x);
}

double at(const CostCurve& curve, double number) {
  if (curve.empty()) return 0;
  const auto above = std::find_if(curve.begin(), curve.end(),
                                  [&](const auto& point) { return point.first >= number; });
  if (above == curve.begin() || curve.size() == 1) return curve.front().second;
  const auto high = above == curve.end() ? curve.end() - 1 : above, low = high - 1;
  const double slope = (high->second - low->second) / (high->first - low->first);
  return low->second + slope * (number - low->first);
}

json::Array points_of(const CostCurve& curve) {
  json::Array points;
  for (const auto& [number, seconds] : curve) points.push_back(json::Array{number, seconds});
  return points;
}

double error_of(const StepCost& cost, const MeasuredStep& step) {
  return std::abs(cost.seconds(step.work) - step.seconds) / step.seconds;
}

}  // namespace

double StepCost::seconds(const StepWork& work) const {
  const bool is_mixed = work.prompt_rows > 0 && work.decode_rows > 0;
  return at(rows, work.rows()) + at(prompt_slots, double(work.prompt_slots)) +
         at(decode_slots, double(work.decode_slots)) + per_sample * work.samples +
         (is_mixed ? mixed : 0);
}

json::Value StepCost::to_json() const {
  return json::Object{{"seconds_by_rows", points_of(rows)},
                      {"seconds_by_prompt_slots", points_of(prompt_slots)},
                      {"seconds_by_decode_slots", points_of(decode_slots)},
                      {"seconds_per_sample", per_sample},
                      {"seconds_of_mixed_steps", mixed},
                      {"steps", steps},
                      {"mean_error", error}};
}

StepCost fit_step_cost(std::span<const MeasuredStep> measured) {
  std::vector<MeasuredStep> steps;
  for (const MeasuredStep& s : measured)
    if (s.seconds > 0) steps.push_back(s);
  if (steps.empty()) fail("expected measured steps to fit a cost model to, found none");
  const Terms terms(steps);
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
