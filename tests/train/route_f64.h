// Which experts a row of the float64 decoder goes through, and with which weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "numerics/routing.h"

namespace invar {

// Scores and weights of all experts; those that are not chosen have weights of 0.
struct RouteF64 {
  std::vector<double> scores, weights;
};

// The groups whose two best add up to the most stay.
inline void leave_groups_f64(const Routing& how, std::vector<double>& choice) {
  const int64_t size = how.experts / how.groups;
  std::vector<double> best;
  for (auto begin = choice.begin(); begin != choice.end(); begin += size) {
    std::vector<double> group(begin, begin + size);
    std::sort(group.begin(), group.end(), std::greater());
    best.push_back(group[0] + group[1]);
  }
  std::vector<double> sorted = best;
  std::sort(sorted.begin(), sorted.end(), std::greater());
  for (size_t e = 0; e < choice.size(); ++e)
    if (best[e / static_cast<size_t>(size)] < sorted[static_cast<size_t>(how.chosen_groups) - 1])
      choice[e] = -1;
}

inline std::vector<bool> chosen_f64(const Routing& how, std::vector<double> choice,
                                    const double* bias) {
  for (size_t e = 0; e < choice.size() && bias; ++e) choice[e] += bias[e];
  if (how.groups > 1) leave_groups_f64(how, choice);
  std::vector<double> sorted = choice;
  std::sort(sorted.begin(), sorted.end(), std::greater());
  std::vector<bool> chosen;
  for (const double x : choice) chosen.push_back(x >= sorted[static_cast<size_t>(how.chosen) - 1]);
  return chosen;
}

// `given` are chosen, if there are any: else the best scores, with their biases.
inline RouteF64 route_f64(const Routing& how, std::vector<double> scores, const double* bias,
                          std::span<const int32_t> given) {
  const bool shares = how.score == ExpertScore::softmax;
  double sum = 0, total = how.epsilon;
  for (double& x : scores) sum += x = std::exp(x);
  for (double& x : scores) x /= shares ? sum : 1 + x;
  std::vector<bool> chosen(scores.size());
  if (given.empty()) chosen = chosen_f64(how, scores, bias);
  for (const int32_t e : given) chosen[static_cast<size_t>(e)] = true;
  RouteF64 route{scores, scores};
  for (size_t e = 0; e < scores.size(); ++e) total += route.weights[e] = chosen[e] ? scores[e] : 0;
  for (double& x : route.weights) x *= how.scale / (how.renormalised ? total : 1);
  return route;
}

}  // namespace invar
