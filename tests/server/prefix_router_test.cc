#include "server/prefix_router.h"

#include <gtest/gtest.h>

namespace invar::server {
namespace {

std::vector<int32_t> prompt(int topic, int length = 130) {
  std::vector<int32_t> tokens(static_cast<size_t>(length), topic);
  return tokens;
}

TEST(PrefixRouter, ChoosesWhoKnowsTheLongestBeginning) {
  PrefixRouter router(3, 64);
  EXPECT_EQ(router.choose(prompt(1), "", std::vector<size_t>{0, 0, 0}), 0U);
  EXPECT_EQ(router.choose(prompt(2), "", std::vector<size_t>{1, 0, 0}), 1U);
  // Who knows it, though others have less to do.
  EXPECT_EQ(router.choose(prompt(1), "", std::vector<size_t>{1, 1, 0}), 0U);
  EXPECT_EQ(router.choose(prompt(2), "", std::vector<size_t>{2, 1, 0}), 1U);
  // One block of a known prompt and then another text: still there. What is longer decides.
  std::vector<int32_t> other = prompt(1, 64);
  other.resize(200, 9);
  EXPECT_EQ(router.choose(other, "", std::vector<size_t>{2, 0, 0}), 0U);
  // The controls: what nobody knows goes to the least busy one, and so does another salt.
  EXPECT_EQ(router.choose(prompt(3), "", std::vector<size_t>{2, 1, 0}), 2U);
  EXPECT_EQ(router.choose(prompt(1), "salt", std::vector<size_t>{2, 1, 0}), 2U);
}

TEST(PrefixRouter, NoReplicaIsFloodedForWhatItKnows) {
  PrefixRouter router(2, 64);
  EXPECT_EQ(router.choose(prompt(1), "", std::vector<size_t>{0, 0}), 0U);
  EXPECT_EQ(router.choose(prompt(1), "", std::vector<size_t>{4, 0}), 0U);
  EXPECT_EQ(router.choose(prompt(1), "", std::vector<size_t>{5, 0}), 1U);
  EXPECT_EQ(router.choose(prompt(1), "", std::vector<size_t>{5, 4}), 1U);  // both know it
}

// Shorter than a block and one token: nothing of it is ever shared.
TEST(PrefixRouter, ShortPromptsGoToTheLeastBusy) {
  PrefixRouter router(2, 64);
  EXPECT_EQ(router.choose(prompt(1, 64), "", std::vector<size_t>{0, 0}), 0U);
  EXPECT_EQ(router.choose(prompt(1, 64), "", std::vector<size_t>{1, 0}), 1U);
  EXPECT_EQ(router.choose({}, "", std::vector<size_t>{1, 0}), 1U);
}

// However many prompts there are: what is old is forgotten, what is recent is not.
TEST(PrefixRouter, ItsMemoryIsBounded) {
  PrefixRouter router(2, 32);
  for (int topic = 0; topic < 140'000; ++topic)
    router.choose(prompt(topic, 33), "", std::vector<size_t>{1, 0});
  EXPECT_EQ(router.choose(prompt(139'999, 33), "", std::vector<size_t>{0, 1}), 1U);
  EXPECT_EQ(router.choose(prompt(0, 33), "", std::vector<size_t>{0, 1}), 0U);
}

}  // namespace
}  // namespace invar::server
