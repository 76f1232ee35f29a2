// What is sampled follows the distribution that the parameters describe: chi-square tests against
// probabilities computed here, in f64, from the definition of each filter.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/thread_pool.h"
#include "sampling/constraint.h"
#include "sampling/grammar/languages.h"
#include "sampling/sampler.h"

namespace invar {
namespace {

constexpr int kVocab = 40, kSamples = 40000;

std::vector<float> some_logits() {
  std::vector<float> x(kVocab);
  for (int i = 0; i < kVocab; ++i) x[i] = 3.0f * std::sin(1.7f * i);
  return x;
}

std::vector<double> softmax(std::vector<double> x) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& v : x) sum += v = std::exp(v - max);
  for (double& v : x) v /= sum;
  return x;
}

// Keeps tokens for which keep(rank, probability before it, probability) holds.
template <typename Keep>
std::vector<double> filtered(const std::vector<double>& p, Keep keep) {
  std::vector<int> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });
  std::vector<double> q(p.size(), 0.0);
  double before = 0, sum = 0;
  for (int rank = 0; rank < std::ssize(order); ++rank) {
    if (keep(rank, before, p[order[rank]])) sum += q[order[rank]] = p[order[rank]];
    before += p[order[rank]];
  }
  for (double& v : q) v /= sum;
  return q;
}

std::vector<double> tempered(double temperature) {
  std::vector<double> x;
  for (const float v : some_logits()) x.push_back(v / temperature);
  return softmax(x);
}

// The chi-square statistic of kSamples samples against `expected`, standardised: about normal when
// the samples follow it. Infinite when a token without probability was sampled.
double deviation(const SamplingParams& params, const std::vector<double>& expected,
                 const TokenHistory& history = {}, std::span<const uint64_t> allowed = {}) {
  ScopedFlushToZero flush;
  const std::vector<float> logits = some_logits();
  Sampler sampler;
  std::vector<int> count(kVocab, 0);
  for (int i = 0; i < kSamples; ++i) {
    const Sampled sampled = sampler.sample({.logits = logits,
                                            .params = &params,
                                            .position = i,
                                            .choice = i % 3,
                                            .history = &history,
                                            .allowed = allowed});
    ++count[sampled.token];
  }
  double statistic = 0, rest_expected = 0;
  int cells = 0, rest = 0;
  for (int i = 0; i < kVocab; ++i) {
    const double e = expected[i] * kSamples;
    if (e == 0 && count[i] > 0) return INFINITY;
    if (e < 10) {
      rest_expected += e;
      rest += count[i];
    } else {
      statistic += (count[i] - e) * (count[i] - e) / e;
      ++cells;
    }
  }
  if (rest_expected >= 10) {
    statistic += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
    ++cells;
  }
  EXPECT_GT(cells, 2);
  return (statistic - (cells - 1)) / std::sqrt(2.0 * (cells - 1));
}

constexpr double kAccepted = 4.0;  // samples are fixed by their seeds: this is not a matter of luck

TEST(Distribution, Plain) {
  SamplingParams p;
  EXPECT_LT(deviation(p, tempered(1.0)), kAccepted);
  p.seed = 12345678901234567;
  EXPECT_LT(deviation(p, tempered(1.0)), kAccepted);
}

TEST(Distribution, TheTestCanFail) {
  SamplingParams p;
  EXPECT_GT(deviation(p, tempered(1.05)), kAccepted);
  p.temperature = 1.05;
  EXPECT_LT(deviation(p, tempered(1.05)), kAccepted);
}

TEST(Distribution, Temperature) {
  SamplingParams p;
  for (const double t : {0.3, 0.7, 2.0}) {
    p.temperature = t;
    EXPECT_LT(deviation(p, tempered(t)), kAccepted) << t;
  }
}

TEST(Distribution, TopK) {
  SamplingParams p;
  for (const int k : {3, 10, 30}) {
    p.top_k = k;
    const auto keep = [&](int rank, double, double) { return rank < k; };
    EXPECT_LT(deviation(p, filtered(tempered(1.0), keep)), kAccepted) << k;
  }
}

TEST(Distribution, TopP) {
  SamplingParams p;
  for (const double top_p : {0.5, 0.8, 0.95}) {
    p.top_p = top_p;
    const auto keep = [&](int, double before, double) { return before < top_p; };
    EXPECT_LT(deviation(p, filtered(tempered(1.0), keep)), kAccepted) << top_p;
  }
}

TEST(Distribution, MinP) {
  SamplingParams p;
  const std::vector<double> plain = tempered(1.0);
  const double max = *std::max_element(plain.begin(), plain.end());
  for (const double min_p : {0.05, 0.3}) {
    p.min_p = min_p;
    const auto keep = [&](int, double, double q) { return q >= min_p * max; };
    EXPECT_LT(deviation(p, filtered(plain, keep)), kAccepted) << min_p;
  }
}

TEST(Distribution, AllFiltersInTheirOrder) {
  SamplingParams p;
  p.temperature = 1.5;
  p.min_p = 0.02;
  p.top_k = 20;
  p.top_p = 0.9;
  std::vector<double> q = tempered(1.5);
  const double max = *std::max_element(q.begin(), q.end());
  q = filtered(q, [&](int, double, double x) { return x >= 0.02 * max; });
  q = filtered(q, [&](int rank, double, double) { return rank < 20; });
  q = filtered(q, [&](int, double before, double) { return before < 0.9; });
  EXPECT_LT(deviation(p, q), kAccepted);
}

// Each alone, and without it the same samples are told apart.
TEST(Distribution, EveryPenaltyAndTheBiasAlone) {
  TokenHistory history(std::vector<int32_t>{1, 2, 2, 5});
  for (const int32_t token : {5, 7, 7, 7}) history.push(token);
  struct Case {
    const char* name;
    SamplingParams params;
    std::function<void(std::vector<double>&)> change;
  };
  std::vector<Case> cases(4);
  cases[0].name = "repetition";
  cases[0].params.repetition_penalty = 1.5;
  cases[0].change = [](std::vector<double>& x) {
    for (const int token : {1, 2, 5, 7}) x[token] = x[token] > 0 ? x[token] / 1.5 : x[token] * 1.5;
  };
  cases[1].name = "presence";  // of what was answered, not of the prompt
  cases[1].params.presence_penalty = -0.7;
  cases[1].change = [](std::vector<double>& x) {
    for (const int token : {5, 7}) x[token] += 0.7;
  };
  cases[2].name = "frequency";
  cases[2].params.frequency_penalty = -0.4;
  cases[2].change = [](std::vector<double>& x) { x[5] += 0.4, x[7] += 1.2; };
  cases[3].name = "bias";
  cases[3].params.logit_bias = {{4, 2.0}, {9, -100.0}};
  cases[3].change = [](std::vector<double>& x) { x[4] += 2, x[9] -= 100; };
  for (const Case& c : cases) {
    std::vector<double> x;
    for (const float v : some_logits()) x.push_back(v);
    EXPECT_GT(deviation(c.params, softmax(x), history), kAccepted) << c.name;
    c.change(x);
    EXPECT_LT(deviation(c.params, softmax(x), history), kAccepted) << c.name;
  }
}

TEST(Distribution, BiasAndPenalties) {
  SamplingParams p;
  p.logit_bias = {{4, 2.0}, {9, -100.0}};
  p.repetition_penalty = 1.3;
  p.presence_penalty = 0.5;
  p.frequency_penalty = 0.25;
  TokenHistory history(std::vector<int32_t>{1, 2, 2, 5});
  for (const int32_t token : {5, 7, 7, 7}) history.push(token);
  std::vector<double> x;
  for (const float v : some_logits()) x.push_back(v);
  x[4] += 2;
  x[9] -= 100;
  for (const int token : {1, 2, 5, 7}) x[token] = x[token] > 0 ? x[token] / 1.3 : x[token] * 1.3;
  x[5] -= 0.25 + 0.5;
  x[7] -= 3 * 0.25 + 0.5;
  EXPECT_LT(deviation(p, softmax(x), history), kAccepted);
}

// Under a constraint: the softmax of what the grammar allows, then the filters.
TEST(Distribution, Constraint) {
  std::vector<std::string> bytes;
  for (int i = 0; i < kVocab; ++i) bytes.emplace_back(1, static_cast<char>('A' + i));
  Constraint constraint(grammar::regex_language("[B-KU-Xa-f]|Z+"),
                        std::make_shared<const TokenTable>(bytes));
  const std::span<const uint64_t> allowed = constraint.allowed(constraint.start());
  const auto is_allowed = [](int i) {
    const char c = static_cast<char>('A' + i);
    return (c >= 'B' && c <= 'K') || (c >= 'U' && c <= 'X') || (c >= 'a' && c <= 'f') || c == 'Z';
  };
  std::vector<double> x(kVocab);
  for (int i = 0; i < kVocab; ++i) x[i] = is_allowed(i) ? some_logits()[i] : -INFINITY;
  SamplingParams p;
  EXPECT_LT(deviation(p, softmax(x), {}, allowed), kAccepted);
  p.top_k = 5;
  const auto keep = [](int rank, double, double) { return rank < 5; };
  EXPECT_LT(deviation(p, filtered(softmax(x), keep), {}, allowed), kAccepted);
  // Controls. A slightly other distribution over the same tokens is told apart ...
  p.top_k = 0;
  std::vector<double> warmer = x;
  for (double& v : warmer) v /= 1.05;
  EXPECT_GT(deviation(p, softmax(warmer), {}, allowed), kAccepted);
  // ... and so is a filter that comes before the grammar, whose tokens the grammar allows as well.
  p.top_k = 12;
  const auto keep_12 = [](int rank, double, double) { return rank < 12; };
  std::vector<double> before = filtered(tempered(1.0), keep_12);
  for (int i = 0; i < kVocab; ++i) before[i] = is_allowed(i) ? before[i] : 0;
  const double sum = std::accumulate(before.begin(), before.end(), 0.0);
  for (double& v : before) v /= sum;
  EXPECT_LT(deviation(p, filtered(softmax(x), keep_12), {}, allowed), kAccepted);
  EXPECT_GT(deviation(p, before, {}, allowed), kAccepted);
  // Without the grammar other tokens are sampled.
  EXPECT_EQ(deviation(p, filtered(softmax(x), keep_12)), INFINITY);
}

}  // namespace
}  // namespace invar
