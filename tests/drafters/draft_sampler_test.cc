#include "drafters/draft_sampler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/model.h"

namespace invar {
namespace {

constexpr size_t kVocab = 512;

// The likeliest token is 7, and it has this share, percent.
std::vector<float> logits_with(int percent) {
  const double share = percent / 100.0;
  std::vector<float> logits(kVocab, 0);
  logits[7] = static_cast<float>(std::log(share / (1 - share) * double{kVocab - 1}));
  return logits;
}

// Shares of the places that have a draft at this confidence, of 5, 15 .. 95 percent.
std::vector<int> drafted(const Model& model, double confidence, double temperature,
                         bool wants_argmax = false) {
  std::vector<int> shares;
  std::vector<float> logits;
  for (int i = 0; i < 10; ++i) {
    shares.push_back(5 + 10 * i);
    const std::vector<float> row = logits_with(shares.back());
    logits.insert(logits.end(), row.begin(), row.end());
  }
  SamplingParams params;
  params.temperature = temperature;
  const std::vector<int32_t> tokens = {1, 2};
  const DraftRequest request{
      .tokens = tokens, .prompt_size = 2, .params = &params, .wants_argmax = wants_argmax};
  std::vector<DraftPoint> points(shares.size(), {.request = &request});
  ThreadPool pool(2);
  DraftSampler(pool.size(), model.host_kernels(), confidence).sample(pool, points, logits);
  std::vector<int> of_drafts;
  for (size_t i = 0; i < points.size(); ++i) {
    if (points[i].tokens.empty()) continue;
    of_drafts.push_back(shares[i]);
    if (temperature == 0 || wants_argmax) {
      EXPECT_EQ(points[i].tokens[0], 7);
    }
  }
  return of_drafts;
}

TEST(DraftSampler, DraftsNothingWhereItIsNotSure) {
  const Model model({.model = "tiny", .load_format = "dummy:7", .threads = 1});
  for (const double temperature : {0.0, 0.8}) {
    EXPECT_EQ(drafted(model, 0, temperature).size(), 10);
    EXPECT_EQ(drafted(model, 0.5, temperature), (std::vector{55, 65, 75, 85, 95}));
    EXPECT_EQ(drafted(model, 0.9, temperature), std::vector{95});
    EXPECT_TRUE(drafted(model, 1, temperature).empty());
  }
}

// What acceptance by rejection takes most of, at any temperature.
TEST(DraftSampler, DraftsTheLikeliestTokenWhereThatIsWanted) {
  const Model model({.model = "tiny", .load_format = "dummy:7", .threads = 1});
  EXPECT_EQ(drafted(model, 0, 1.5, true).size(), 10);
}

}  // namespace
}  // namespace invar
