#include "server/places.h"

#include <gtest/gtest.h>

namespace invar::server {
namespace {

TEST(Places, AreGivenBackAndNeverOverdrawn) {
  Places places(10, 100, 1);
  {
    PlacesHeld one(places, "a"), two(places, "b");
    EXPECT_TRUE(one.grow_to(4));
    EXPECT_FALSE(two.grow_to(7));
    EXPECT_EQ(places.taken(), 4u);  // who is refused holds nothing
    EXPECT_TRUE(two.grow_to(6));
    EXPECT_TRUE(one.grow_to(3));
    EXPECT_FALSE(two.grow_to(8));
    EXPECT_TRUE(two.grow_to(7));
    one.insist_on(5);  // what was promised before
    EXPECT_EQ(places.taken(), 12u);
    EXPECT_FALSE(two.grow_to(8));
  }
  EXPECT_EQ(places.taken(), 0u);
}

TEST(Places, MemoryIsHeldUntilTheRequestGoes) {
  Places places(10, 100, 1);
  {
    PlacesHeld one(places, "a"), two(places, "a");
    EXPECT_TRUE(one.hold(60));
    EXPECT_FALSE(two.hold(41));
    EXPECT_TRUE(two.hold(40));
  }
  PlacesHeld all(places, "b");
  EXPECT_TRUE(all.hold(100));
}

// So that others find some.
TEST(Places, OneOfSeveralOwnersHasHalfAtMost) {
  Places places(10, 100, 2);
  PlacesHeld one(places, "a"), more(places, "a"), other(places, "b");
  EXPECT_EQ(places.most_of_owner(), 5u);
  EXPECT_TRUE(one.grow_to(4));
  EXPECT_FALSE(more.grow_to(2));
  EXPECT_TRUE(other.grow_to(5));
  EXPECT_TRUE(one.hold(30));
  EXPECT_FALSE(more.hold(21));
  EXPECT_TRUE(other.hold(50));
  EXPECT_EQ(Places(1, 1, 2).most_of_owner(), 1u);
}

// The first of a request's answers comes behind those of its owner that are as urgent or more.
TEST(Places, RanksCountTheAnswersOfOneOwner) {
  Places places(100, 100, 2);
  PlacesHeld one(places, "a"), late(places, "a"), soon(places, "a"), other(places, "b");
  for (PlacesHeld* held : {&one, &late, &soon, &other}) EXPECT_TRUE(held->grow_to(3));
  EXPECT_EQ(one.rank(0), 0);
  EXPECT_EQ(late.rank(0), 3);
  EXPECT_EQ(soon.rank(-1), 0);
  EXPECT_EQ(other.rank(5), 0);
  {
    PlacesHeld more(places, "a");
    EXPECT_TRUE(more.grow_to(1));
    EXPECT_EQ(more.rank(1), 9);
  }
  PlacesHeld more(places, "a");
  EXPECT_EQ(more.rank(1), 9);  // those that went do not count
}

}  // namespace
}  // namespace invar::server
