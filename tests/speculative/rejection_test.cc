// Acceptance by rejection: tokens follow the target's distribution whatever the drafts are.
#include "speculative/rejection.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/thread_pool.h"

namespace invar {
namespace {

constexpr int kVocab = 40, kSamples = 40000;

std::vector<float> some_logits() {
  std::vector<float> x(kVocab);
  for (int i = 0; i < kVocab; ++i) x[i] = 3.0F * std::sin(1.7F * static_cast<float>(i));
  return x;
}

// How likely each token is after these parameters' filters, in f64: the `top_k` largest at most.
std::vector<double> shares(const SamplingParams& params) {
  std::vector<double> p;
  for (const float x : some_logits()) p.push_back(std::exp(x / params.temperature));
  std::vector<double> sorted = p;
  std::ranges::sort(sorted, std::greater());
  double sum = 0;
  for (double& x : p) sum += x = params.top_k == 0 || x >= sorted[params.top_k - 1] ? x : 0;
  for (double& x : p) x /= sum;
  return p;
}

using Choose = std::function<int32_t(Sampler&, const SampleInput&, const DraftTree&)>;

int32_t by_rejection(Sampler& sampler, const SampleInput& input, const DraftTree& tree) {
  return sample_by_rejection(sampler, input, &tree, -1);
}

// Drafts of a drafter that samples with the target's noise, and two more.
DraftTree drafts_of(Sampler& sampler, const SampleInput& input) {
  DraftTree tree;
  for (const int32_t token : {sampler.sample(input).token, 1, 14})
    if (child_with(tree, -1, token) < 0) tree.push_back({token, -1});
  tree.push_back({3, 0});  // of another node: not asked here
  return tree;
}

// The chi-square statistic of kSamples tokens, standardised: about normal when they follow the
// distribution. Infinite when a token without probability came.
double deviation(const SamplingParams& params, const Choose& choose) {
  ScopedFlushToZero flush;
  const std::vector<float> logits = some_logits();
  const std::vector<double> expected = shares(params);
  Sampler sampler;
  std::vector<int> count(kVocab);
  for (int i = 0; i < kSamples; ++i) {
    const SampleInput input{.logits = logits, .params = &params, .position = i, .choice = i % 3};
    const DraftTree tree = drafts_of(sampler, input);
    ++count[choose(sampler, input, tree)];
  }
  double statistic = 0;
  int cells = 0;
  for (int i = 0; i < kVocab; ++i) {
    const double e = expected[i] * kSamples;
    if (e == 0 && count[i] > 0) return INFINITY;
    if (e == 0) continue;
    statistic += (count[i] - e) * (count[i] - e) / e;
    ++cells;
  }
  return cells > 1 ? (statistic - (cells - 1)) / std::sqrt(2.0 * (cells - 1)) : 0;
}

TEST(Rejection, TokensFollowTheTargetsDistribution) {
  for (const SamplingParams& params : {SamplingParams{.temperature = 1.0, .seed = 3},
                                       SamplingParams{.temperature = 0.7, .seed = 4},
                                       SamplingParams{.temperature = 1.5, .top_k = 5, .seed = 5},
                                       SamplingParams{.temperature = 1.0, .top_k = 1, .seed = 6}})
    EXPECT_LT(std::abs(deviation(params, by_rejection)), 4) << params.temperature;
}

// The controls: samples behind a draft that was not accepted as if it had not been tried, and a
// draft that is taken without a coin, show.
TEST(Rejection, WhatIsNotIsFound) {
  const SamplingParams params{.temperature = 1.0, .seed = 3};
  const Choose without_residual = [](Sampler& sampler, const SampleInput& input,
                                     const DraftTree& tree) {
    const int32_t token = sample_by_rejection(sampler, input, &tree, -1);
    return child_with(tree, -1, token) >= 0 ? token : sampler.sample(input).token;
  };
  EXPECT_GT(deviation(params, without_residual), 20);
  const Choose drafts = [](Sampler&, const SampleInput&, const DraftTree& tree) {
    return tree[tree.size() / 3].token;
  };
  EXPECT_GT(deviation(params, drafts), 20);
}

TEST(Rejection, IsAFunctionOfSeedDraftsAndPlace) {
  ScopedFlushToZero flush;
  const std::vector<float> logits = some_logits();
  const SamplingParams params{.temperature = 1.0, .seed = 9};
  Sampler sampler;
  int differ = 0;
  for (int i = 0; i < 200; ++i) {
    const SampleInput input{.logits = logits, .params = &params, .position = i};
    const DraftTree tree = drafts_of(sampler, input);
    const int32_t first = by_rejection(sampler, input, tree);
    sampler.sample(input);
    EXPECT_EQ(by_rejection(sampler, input, tree), first);
    sampler.sample(input);
    differ += sample_by_rejection(sampler, input, nullptr, -1) != first;
  }
  EXPECT_GT(differ, 20);
}

}  // namespace
}  // namespace invar
