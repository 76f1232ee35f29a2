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
      EXPECT_EQ(nodes, proposer.last_length());
      rows += 1 + nodes;
      if (nodes > 0) proposer.observe(i, nodes, std::min(nodes, right));
    }
    proposer.observe_step(rows, base + row * static_cast<double>(rows));
    if (step >= 200) total += proposer.last_length();
  }
  return total / 100;
}

TEST(Adaptive, LineFitGoesThroughItsPoints) {
  LineFit line;
  EXPECT_TRUE(line.is_empty());
  EXPECT_EQ(line.at(3), 0);
  line.add(2, 10);
  EXPECT_DOUBLE_EQ(line.at(7), 10) << "one point: no slope";
  line.add(4, 14);
  EXPECT_NEAR(line.at(8), 22, 1e-9);
  for (int i = 0; i < 500; ++i) line.add(2 + i % 3, 3);
  EXPECT_NEAR(line.at(8), 3, 1e-3) << "old points are forgotten";
  LineFit falling;
  falling.add(1, 5);
  falling.add(2, 1);
  EXPECT_DOUBLE_EQ(falling.at(1), falling.at(9)) << "more rows never take less time";
}

TEST(Adaptive, DraftsAsLongAsPays) {
  EXPECT_GT(mean_length(1, 1, 0.001, 8), 7.5) << "rows cost nothing and all drafts are right";
  EXPECT_LT(mean_length(1, 1, 0.05, 1), 4) << "the first is right and no other";
  EXPECT_LT(mean_length(1, 1, 0.01, 0), 0.3) << "none is right";
  EXPECT_LT(mean_length(1, 0, 1, 1), 0.5) << "a row costs a step";
  // The same drafts pay for one sequence and not where a step has many.
  EXPECT_GT(mean_length(1, 1, 0.1, 2), 1.5);
  EXPECT_LT(mean_length(64, 1, 0.1, 2), 1.5);
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
