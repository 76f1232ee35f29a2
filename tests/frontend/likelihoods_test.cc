#include "frontend/likelihoods.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace invar {
namespace {

using Tokens = std::vector<int32_t>;
const Tokens kPrompt = {1, 2, 3};

TEST(LikelihoodsTest, TextsThatBeginAlikeShareRequests) {
  Likelihoods likelihoods("salt", 100);
  const size_t ab = likelihoods.add(kPrompt, Tokens{7, 8}),
               ac = likelihoods.add(kPrompt, Tokens{7, 9});
  const size_t other = likelihoods.add(Tokens{1, 2}, Tokens{7, 8});
  const auto requests = likelihoods.requests();
  ASSERT_EQ(requests.size(), 5u);
  EXPECT_EQ(likelihoods.prompt_tokens(), 5);
  EXPECT_EQ(requests[0].prompt, kPrompt);
  EXPECT_EQ(requests[2].prompt, (Tokens{1, 2, 3, 7}));
  EXPECT_TRUE(requests[1].prompt.is_same(requests[2].prompt));
  for (const Request& request : requests) {
    EXPECT_EQ(request.params.max_tokens, 1);
    EXPECT_EQ(request.params.allowed_token_ids.size(), 1u);
    EXPECT_EQ(request.cache_salt, std::string("salt"));
  }
  const std::vector<std::vector<float>> numbers = {{-1}, {-2}, {-4}, {-8}, {-16}};
  EXPECT_EQ(likelihoods.log_probability(ab, numbers), -3);
  EXPECT_EQ(likelihoods.log_probability(ac, numbers), -5);
  EXPECT_EQ(likelihoods.log_probability(other, numbers), -24);
}

TEST(LikelihoodsTest, BoundsWhatIsAsked) {
  Likelihoods likelihoods("", 5);
  EXPECT_NO_THROW(likelihoods.add(kPrompt, Tokens{7, 8}));
  EXPECT_THROW(likelihoods.add(kPrompt, Tokens{7, 8, 9}), UsageError);
  EXPECT_THROW(likelihoods.add(kPrompt, Tokens{}), UsageError);
  EXPECT_THROW(likelihoods.add(Tokens{}, Tokens{7}), UsageError);
  Likelihoods many("", 5);
  for (size_t i = 0; i < Likelihoods::kMostRequests; ++i)
    many.add(kPrompt, Tokens{static_cast<int32_t>(i)});
  EXPECT_NO_THROW(many.add(kPrompt, Tokens{0}));
  EXPECT_THROW(many.add(kPrompt, Tokens{-1}), UsageError);
  EXPECT_GT(many.bytes(), Likelihoods::kMostRequests * sizeof(Request) - 1);
}

}  // namespace
}  // namespace invar
