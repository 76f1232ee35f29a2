// Which experts a token goes through, and with which weights (numerics 7): the definition, which
// the CPU and CUDA run as it is. Expects flush-to-zero mode.
#pragma once

#include <cstdint>
#include <limits>

#include "numerics/math.h"

namespace invar {

// The router's logits become this: shares of all experts, numbers of their own between 0 and 1,
// shares of the chosen ones, or such numbers of the chosen ones.
enum class ExpertScore : uint8_t { softmax, sigmoid, softmax_of_chosen, sigmoid_of_chosen };

struct Routing {
  static constexpr int kMaxExperts = 1024, kMaxChosen = 64;

  int experts = 0;  // E
  int chosen = 0;   // k, of every token
  ExpertScore score = ExpertScore::softmax;
  // Experts stand in equal groups, of which the best may be chosen from (DeepSeek).
  int groups = 1, chosen_groups = 1;
  bool pair_score = false;    // DeepSeek-V3: a group counts as its two best together, else its best
  bool renormalised = false;  // weights are divided by their sum
  float epsilon = 0;          // which is added to that sum
  float scale = 1;            // what weights are multiplied by

  bool operator==(const Routing&) const = default;
};

namespace routing {

// The largest of values[i] with i in [begin, end) that `taken` has no bit for, ties to the lower
// i; -1 if there is none. Nothing is below minus infinity.
constexpr int largest(const float* values, int begin, int end, const uint32_t* taken) {
  int best = -1;
  for (int i = begin; i < end; ++i)
    if (!(taken[i / 32] >> (i % 32) & 1) && (best < 0 || values[i] > values[best])) best = i;
  return best;
}

constexpr float logistic(float x) {
  return 1.0f / (1.0f + math::exp(-x));
}

constexpr void take(uint32_t* taken, int i) {
  taken[i / 32] |= uint32_t{1} << (i % 32);
}

// Shares by softmax: x[i] of the i that `is_in` says become exp(x[i] - max) / sum, the sum one
// chain, i ascending.
template <typename IsIn>
constexpr void share_out(float* x, int count, IsIn is_in) {
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int i = 0; i < count; ++i)
    if (is_in(i) && x[i] > max) max = x[i];
  for (int i = 0; i < count; ++i)
    if (is_in(i)) sum = sum + (x[i] = math::exp(x[i] - max));
  for (int i = 0; i < count; ++i)
    if (is_in(i)) x[i] = x[i] / sum;
}

// Experts of the groups that may not be chosen from count as minus infinity.
constexpr void leave_groups(const Routing& how, float* choice) {
  const int size = how.experts / how.groups;
  float best[Routing::kMaxExperts] = {};
  uint32_t none[Routing::kMaxExperts / 32] = {}, kept[Routing::kMaxExperts / 32] = {};
  for (int g = 0; g < how.groups; ++g) {
    uint32_t taken[Routing::kMaxExperts / 32] = {};
    const int first = largest(choice, g * size, (g + 1) * size, none);
    take(taken, first);
    const int second = how.pair_score ? largest(choice, g * size, (g + 1) * size, taken) : -1;
    best[g] = second < 0 ? choice[first] : choice[first] + choice[second];
  }
  for (int i = 0; i < how.chosen_groups; ++i) take(kept, largest(best, 0, how.groups, kept));
  for (int e = 0; e < how.experts; ++e)
    if (!(kept[e / size / 32] >> (e / size % 32) & 1))
      choice[e] = -std::numeric_limits<float>::infinity();
}

// Routes one token. `logits` [E] become its scores; `bias` [E] or null is added to them for the
// choice only; `choice` [E] is room to compute in. `ids` [k] ascend. With `given`, [k], these are
// chosen.
constexpr void route(const Routing& how, float* logits, const float* bias, float* choice,
                     int32_t* ids, float* weights, const int32_t* given = nullptr) {
  const int count = how.experts;
  if (how.score == ExpertScore::softmax) share_out(logits, count, [](int) { return true; });
  if (how.score == ExpertScore::sigmoid)
    for (int e = 0; e < count; ++e) logits[e] = logistic(logits[e]);
  for (int e = 0; e < count; ++e) {
    choice[e] = bias ? logits[e] + bias[e] : logits[e];
    if (choice[e] != choice[e]) choice[e] = -std::numeric_limits<float>::infinity();
  }
  if (how.groups > 1) leave_groups(how, choice);
  uint32_t taken[Routing::kMaxExperts / 32] = {};
  for (int i = 0; i < how.chosen; ++i)
    take(taken, given ? given[i] : largest(choice, 0, count, taken));
  const auto is_chosen = [&](int e) { return (taken[e / 32] >> (e % 32) & 1) != 0; };
  if (how.score == ExpertScore::softmax_of_chosen) share_out(logits, count, is_chosen);
  if (how.score == ExpertScore::sigmoid_of_chosen)
    for (int e = 0; e < count; ++e)
      if (is_chosen(e)) logits[e] = logistic(logits[e]);
  float sum = 0;
  for (int e = 0, i = 0; e < count; ++e)
    if (is_chosen(e)) {
      ids[i] = e;
      sum = sum + (weights[i++] = logits[e]);
    }
  if (how.epsilon != 0) sum = sum + how.epsilon;
  for (int i = 0; i < how.chosen; ++i) {
    if (how.renormalised) weights[i] = weights[i] / sum;
    if (how.scale != 1) weights[i] = weights[i] * how.scale;
  }
}

}  // namespace routing

}  // namespace invar
