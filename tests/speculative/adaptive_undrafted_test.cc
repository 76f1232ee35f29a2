// What adaptive lengths cost those who gain nothing: sequences without drafts beside others, and
// everybody where a drafter does not pay and yet works in every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "speculative/adaptive.h"

namespace invar {
namespace {

// Drafts for requests of even ids as many tokens as it may.
class ForEven final : public Proposer {
 public:
  std::string_view name() const override { return "for even"; }
  int32_t most_nodes() const override { return 4; }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    for (size_t i = 0; i < requests.size(); ++i)
      for (int32_t n = 0; requests[i].id % 2 == 0 && n < requests[i].most; ++n)
        trees[i].push_back({n, n - 1});
  }
};

struct Outcome {
  double p99 = 0;  // of steps, over a plain one
  int64_t accepted = 0;
};

// Eight sequences decode, `drafted` of them with drafts that are always right; a step takes 1, and
// for each row beyond the eight `row`.
Outcome run(int drafted, double row, double slowdown) {
  Adaptive proposer(std::make_unique<ForEven>(), {.undrafted_slowdown = slowdown});
  const std::vector<int32_t> tokens = {1};
  std::vector<DraftRequest> requests;
  for (int i = 0; i < 8; ++i)
    requests.push_back({.id = i < drafted ? 2 * i : 2 * i + 1, .tokens = tokens, .most = 4});
  std::vector<double> steps;
  Outcome outcome;
  for (int step = 0; step < 1000; ++step) {
    std::vector<DraftTree> trees(requests.size());
    proposer.propose(requests, trees);
    int64_t nodes = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto size = static_cast<int32_t>(trees[i].size());
      nodes += size;
      if (size > 0) proposer.observe(requests[i].id, size, size);
    }
    steps.push_back(1 + row * static_cast<double>(nodes));
    proposer.observe_step(8 + nodes, steps.back());
    outcome.accepted += nodes;
  }
  std::ranges::sort(steps);
  outcome.p99 = steps[990];
  return outcome;
}

TEST(Undrafteds, DoNotWaitForOthersDrafts) {
  const Outcome limited = run(4, 0.02, 0.05);
  EXPECT_LE(limited.p99, 1.05 + 1e-9);
  EXPECT_GT(limited.accepted, 1000) << "what fits into the limit goes on";
  EXPECT_LE(run(4, 0.1, 0.05).p99, 1.05 + 1e-9) << "no row fits";
}

TEST(Undrafteds, WaitWithoutTheLimit) {
  const Outcome unlimited = run(4, 0.02, 1000);
  EXPECT_GT(unlimited.p99, 1.2);
  EXPECT_GT(unlimited.accepted, 10000);
}

TEST(Undrafteds, AreNoReasonToDraftLessWhereThereAreNone) {
  EXPECT_EQ(run(8, 0.02, 0.05).accepted, run(8, 0.02, 1000).accepted);
}

TEST(Undrafteds, AreNoReasonToDraftLessWhereRowsAreFree) {
  EXPECT_EQ(run(4, 0.001, 0.05).accepted, run(4, 0.001, 1000).accepted);
}

// Works for every row that it is shown, which it says it has to be, and is never right.
class Industrious final : public Proposer, public HiddenReader {
 public:
  static constexpr std::chrono::microseconds kWork{100};

  explicit Industrious(int64_t& worked) : worked_(worked) {}
  std::string_view name() const override { return "industrious"; }
  int32_t most_nodes() const override { return 4; }
  HiddenReader* hidden_reader() override { return this; }
  std::span<const int32_t> aux_layers() const override { return {&layer_, 1}; }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    for (size_t i = 0; i < requests.size(); ++i) trees[i].push_back({0, -1});
  }
  void take_hidden(std::span<const KeptRows> kept, std::span<const float>, int64_t) override {
    const auto end = std::chrono::steady_clock::now() + kWork * std::ssize(kept);
    while (std::chrono::steady_clock::now() < end) {
    }
    worked_ += std::ssize(kept);
  }

 private:
  const int32_t layer_ = 0;
  int64_t& worked_;
};

// How many rows it worked for, of 800 steps of 4 sequences that take 1 ms each.
int64_t rows_worked_for(bool adapts, bool* asks = nullptr) {
  int64_t worked = 0;
  Adaptive proposer(std::make_unique<Industrious>(worked),
                    {.adapts = adapts, .disable_by_batch_size = adapts ? 0 : 2});
  const std::vector<int32_t> tokens(100, 1), row = {0};
  for (int step = 0; step < 800; ++step) {
    std::vector<DraftRequest> requests;
    std::vector<KeptRows> kept;
    for (int i = 0; i < 4; ++i) {
      const int64_t id = step / 200 * 4 + i;
      requests.push_back({.id = id, .tokens = tokens, .most = 4});
      kept.push_back({.id = id, .tokens = tokens, .position = step % 200, .rows = row});
    }
    std::vector<DraftTree> trees(requests.size());
    proposer.propose(requests, trees);
    int64_t nodes = 0;
    for (size_t i = 0; i < requests.size(); ++i)
      if (nodes += std::ssize(trees[i]); !trees[i].empty())
        proposer.observe(requests[i].id, static_cast<int32_t>(trees[i].size()), 0);
    proposer.observe_step(4 + nodes, 1e-3 + 1e-4 * static_cast<double>(nodes));
    if (!proposer.aux_layers().empty()) proposer.take_hidden(kept, {}, 4);
    if (asks) *asks = *asks || (step > 400 && nodes > 0);
    if (step % 200 == 199)
      for (const DraftRequest& request : requests) proposer.forget(request.id);
  }
  return worked;
}

TEST(Adaptive, ADrafterThatDoesNotPaySleeps) {
  EXPECT_EQ(rows_worked_for(false), 4 * 800) << "the control: it is asked for nothing, and works";
  EXPECT_LT(rows_worked_for(true), 4 * 800 / 8);
}

// Its drafts are all right and cost nothing, which is all that estimates see; what it does for the
// rows that it is shown takes longer than they save. Where the account is overdrawn there are none
// but trials, whatever the estimates promise.
TEST(Adaptive, AnOverdrawnAccountHasNoDraftsHoweverGoodTheyAre) {
  int64_t worked = 0;
  Adaptive proposer(std::make_unique<Industrious>(worked), {});
  const std::vector<int32_t> tokens(100, 1), row = {0};
  const std::vector<DraftRequest> requests = {{.id = 1, .tokens = tokens, .most = 1}};
  int asleep = 0, drafted = 0;
  for (int step = 0; step < 3000; ++step) {
    std::vector<DraftTree> trees(1);
    proposer.propose(requests, trees);
    const int drafts = static_cast<int>(trees[0].size());
    if (drafts > 0) proposer.observe(1, drafts, drafts);
    if (proposer.is_asleep()) ++asleep, drafted += drafts > 0;
    const double plain = 0.5 * std::chrono::duration<double>(Industrious::kWork).count();
    proposer.observe_step(1 + drafts, plain * (1 + 0.05 * drafts));
    const std::vector<KeptRows> kept = {{.id = 1, .tokens = tokens, .position = step, .rows = row}};
    if (!proposer.aux_layers().empty()) proposer.take_hidden(kept, {}, 1);
  }
  EXPECT_GT(asleep, 1000);
  EXPECT_LT(drafted, asleep / 10);
}

// Drafts of one sequence, in the end all right: it wakes, and everybody has them.
TEST(Adaptive, ADrafterThatPaysAgainWakes) {
  int64_t worked = 0;
  Adaptive proposer(std::make_unique<Industrious>(worked), {});
  const std::vector<int32_t> tokens = {1}, row = {0};
  bool slept = false;
  for (int step = 0; step < 6000; ++step) {
    const bool is_right = step > 500;
    const std::vector<DraftRequest> requests = {{.id = step / 100, .tokens = tokens, .most = 1}};
    const std::vector<KeptRows> kept = {
        {.id = step / 100, .tokens = tokens, .position = step % 100, .rows = row}};
    std::vector<DraftTree> trees(1);
    proposer.propose(requests, trees);
    if (!trees[0].empty()) proposer.observe(step / 100, 1, is_right ? 1 : 0);
    proposer.observe_step(1 + std::ssize(trees[0]), trees[0].empty() ? 1e-3 : 1.1e-3);
    if (!proposer.aux_layers().empty()) proposer.take_hidden(kept, {}, 1);
    slept |= !is_right && proposer.is_asleep();
    if (step % 100 == 99) proposer.forget(step / 100);
    if (is_right && !proposer.is_asleep() && step > 1000) break;
  }
  EXPECT_TRUE(slept);
  EXPECT_FALSE(proposer.is_asleep());
}

}  // namespace
}  // namespace invar
