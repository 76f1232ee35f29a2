#include "speculative/adaptive.h"

#include <gtest/gtest.h>

namespace invar {
namespace {

// Drafts as many tokens as it may.
class Chains final : public Proposer {
 public:
  std::string_view name() const override { return "chains"; }
  int32_t most_nodes() const override { return 8; }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    for (size_t i = 0; i < requests.size(); ++i)
      for (int32_t n = 0; n < requests[i].most; ++n) trees[i].push_back({n, n - 1});
  }
};

// Steps of `sequences`, of whose drafts every one is accepted that `is_right` says; a step takes
// `base` and for each row `row` seconds. Returns the mean length of the last 100 drafts.
double mean_length(int sequences, double base, double row, int32_t right) {
  Adaptive proposer(std::make_unique<Chains>(), {});
  const std::vector<int32_t> tokens = {1};
  double total = 0;
  for (int step = 0; step < 300; ++step) {
    std::vector<DraftRequest> requests;
    for (int i = 0; i < sequences; ++i) requests.push_back({.id = i, .tokens = tokens, .most = 8});
    std::vector<DraftTree> trees(requests.size());
    proposer.propose(requests, trees);
    int64_t rows = 0;
    for (int i = 0; i < sequences; ++i) {
      const int32_t nodes = static_cast<int32_t>(trees[i].size());
      EXPECT_LE(nodes, proposer.last_length());
      rows += 1 + nodes;
      if (nodes > 0) proposer.observe(i, nodes, std::min(nodes, right));
    }
    proposer.observe_step(rows, base + row * static_cast<double>(rows));
    if (step >= 200) total += proposer.last_length();
  }
  return total / 100;
}

TEST(StepTimes, KnowsWhatWasMeasuredAndWhatLiesBetween) {
  StepTimes times;
  EXPECT_EQ(times.at(3), 0);
  times.add(2, 10);
  EXPECT_DOUBLE_EQ(times.at(2), 10);
  EXPECT_DOUBLE_EQ(times.at(7), 10) << "one point: no slope";
  times.add(4, 14);
  EXPECT_DOUBLE_EQ(times.at(3), 12);
  EXPECT_DOUBLE_EQ(times.at(8), 22) << "above the last point the slope goes on";
  times.add(12, 15);
  EXPECT_DOUBLE_EQ(times.at(8), 14.5) << "a bend is no line";
  EXPECT_DOUBLE_EQ(times.at(4), 14);
  EXPECT_EQ(times.most_rows(), 12);
}

TEST(StepTimes, ForgetsInterruptedAndOldSteps) {
  StepTimes times;
  times.add(1, 100);
  times.add(1, 10);
  EXPECT_DOUBLE_EQ(times.at(1), 10) << "the first step was interrupted";
  for (int i = 0; i < 20; ++i) times.add(1, 10);
  times.add(1, 1000);
  EXPECT_LT(times.at(1), 11) << "one interrupted step says little";
  for (int i = 0; i < 200; ++i) times.add(1, 30);
  EXPECT_NEAR(times.at(1), 30, 0.1) << "a machine that became slower is noticed";
}

TEST(Adaptive, DraftsAsLongAsPays) {
  EXPECT_GT(mean_length(1, 1, 0.001, 8), 7.5) << "rows cost nothing and all drafts are right";
  EXPECT_LT(mean_length(1, 1, 0.05, 1), 4) << "the first is right and no other";
  EXPECT_LT(mean_length(1, 1, 0.01, 0), 0.3) << "none is right";
  EXPECT_LT(mean_length(1, 0, 1, 1), 0.5) << "a row costs a step";
  // The same drafts pay for one sequence and not where a step has many.
  EXPECT_GT(mean_length(1, 1, 1, 2), 1.5);
  EXPECT_LT(mean_length(64, 1, 1, 2), 0.5);
}

// The share of the time that drafts cost which are never right: one sequence, a row is a tenth of a
// step, a drafted token a quarter. Proposers here take no time, so that drafting counts as rows.
TEST(Adaptive, DraftingWhatIsNeverRightCostsNextToNothing) {
  for (const int sequences : {1, 4, 64}) {
    Adaptive proposer(std::make_unique<Chains>(), {});
    const std::vector<int32_t> tokens = {1};
    double seconds = 0, plain = 0;
    for (int step = 0; step < 400; ++step) {
      std::vector<DraftRequest> requests;
      for (int i = 0; i < sequences; ++i)
        requests.push_back({.id = step / 100 * sequences + i, .tokens = tokens, .most = 8});
      std::vector<DraftTree> trees(requests.size());
      proposer.propose(requests, trees);
      int64_t rows = sequences;
      for (int i = 0; i < sequences; ++i) {
        rows += std::ssize(trees[i]);
        if (!trees[i].empty())
          proposer.observe(requests[i].id, static_cast<int32_t>(trees[i].size()), 0);
      }
      const double took = 1 + 0.35 * static_cast<double>(rows);
      proposer.observe_step(rows, took);
      seconds += took;
      plain += 1 + 0.35 * sequences;
    }
    EXPECT_GT(plain / seconds, 0.97) << sequences << " sequences, from the first step on";
  }
}

// Of two sequences that decode together, one whose drafts are right and one whose are not.
TEST(Adaptive, EachSequenceHasALengthOfItsOwn) {
  Adaptive proposer(std::make_unique<Chains>(), {.undrafted_slowdown = 1000});
  const std::vector<int32_t> tokens = {1};
  const std::vector<DraftRequest> requests = {{.id = 0, .tokens = tokens, .most = 8},
                                              {.id = 1, .tokens = tokens, .most = 8}};
  int64_t right_one = 0, wrong_one = 0;
  for (int step = 0; step < 300; ++step) {
    std::vector<DraftTree> trees(2);
    proposer.propose(requests, trees);
    for (int i = 0; i < 2; ++i)
      if (const auto nodes = static_cast<int32_t>(trees[i].size()); nodes > 0)
        proposer.observe(i, nodes, i == 0 ? nodes : 0);
    const int64_t rows = 2 + std::ssize(trees[0]) + std::ssize(trees[1]);
    proposer.observe_step(rows, 1 + 0.1 * static_cast<double>(rows));
    if (step < 200) continue;
    right_one += std::ssize(trees[0]);
    wrong_one += std::ssize(trees[1]);
  }
  EXPECT_GT(right_one, 300);
  EXPECT_LT(wrong_one, 50);
}

TEST(Adaptive, ItsEstimatesAreWhatStepsTake) {
  Adaptive proposer(std::make_unique<Chains>(), {});
  const std::vector<int32_t> tokens = {1};
  for (int step = 0; step < 300; ++step) {
    const std::vector<DraftRequest> requests = {{.tokens = tokens, .most = 8}};
    std::vector<DraftTree> trees(1);
    proposer.propose(requests, trees);
    const int64_t rows = 1 + std::ssize(trees[0]);
    if (rows > 1) proposer.observe(0, static_cast<int32_t>(rows) - 1, step % 3);
    proposer.observe_step(rows, rows <= 4 ? 1 : 0.25 * static_cast<double>(rows));
  }
  const Adaptive::Estimates& estimates = proposer.estimates();
  EXPECT_GT(estimates.steps, 250);
  EXPECT_NEAR(estimates.predicted / estimates.measured, 1, 0.1);
}

TEST(Adaptive, AsksForNothingInAStepThatNobodyDecodesIn) {
  Adaptive proposer(std::make_unique<Chains>(), {});
  for (int step = 0; step < 3; ++step) {
    proposer.propose({}, {});
    EXPECT_EQ(proposer.last_length(), 0);
    proposer.observe_step(1, 1);
  }
}

TEST(Adaptive, IsOffWhereManyDecode) {
  Adaptive proposer(std::make_unique<Chains>(), {.adapts = false, .disable_by_batch_size = 3});
  const std::vector<int32_t> tokens = {1};
  for (int sequences = 1; sequences < 6; ++sequences) {
    const std::vector<DraftRequest> requests(sequences, {.tokens = tokens, .most = 8});
    std::vector<DraftTree> trees(sequences);
    proposer.propose(requests, trees);
    EXPECT_EQ(trees[0].size(), sequences < 3 ? 8 : 0);
  }
}

}  // namespace
}  // namespace invar
