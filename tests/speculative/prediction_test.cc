#include "speculative/prediction.h"

#include <gtest/gtest.h>

namespace invar {
namespace {

using Tokens = std::vector<int32_t>;

Prediction after(const Tokens& predicted, const Tokens& answer) {
  Prediction prediction(predicted);
  for (const int32_t token : answer) prediction.take(token);
  return prediction;
}

TEST(Prediction, AnAnswerThatIsItIsAcceptedAsAWhole) {
  const Tokens text = {5, 6, 7, 5, 8};
  const Prediction all = after(text, text);
  EXPECT_EQ(all.accepted(), 5) << "the longest end of the answer decides, not the last 5 alone";
  EXPECT_EQ(after({5, 6, 7, 8}, {5, 6, 7, 8}).accepted(), 4);
  EXPECT_EQ(after({5, 6, 7, 8}, {5, 6, 7, 8}).rejected(), 0);
  EXPECT_TRUE(all.next(8).empty());
}

TEST(Prediction, AChangeIsRejectedAndTheRestComesBack) {
  const Tokens text = {1, 2, 3, 4, 5, 6, 7, 8};
  const Prediction changed = after(text, {1, 2, 99, 4, 5, 6, 7, 8});
  EXPECT_EQ(changed.accepted(), 6) << "99 and the 4 behind it were not expected";
  EXPECT_EQ(changed.rejected(), 2);
  EXPECT_EQ(after(text, {1, 2, 99}).next(3).size(), 0);
  EXPECT_EQ(after(text, {}).next(2)[1], 2);
  EXPECT_EQ(after({}, {1, 2}).accepted(), 0);
  EXPECT_EQ(after(text, {9, 9}).accepted(), 0);
  EXPECT_EQ(after(text, {9, 9}).rejected(), 8);
}

}  // namespace
}  // namespace invar
