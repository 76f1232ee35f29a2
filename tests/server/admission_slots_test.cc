#include "server/admission_slots.h"

#include <gtest/gtest.h>

namespace invar::server {
namespace {

TEST(AdmissionSlots, AreGivenBackAndNeverOverdrawn) {
  AdmissionSlots slots(10, 100, 1);
  {
    HeldSlots one(slots, "a"), two(slots, "b");
    EXPECT_TRUE(one.grow_to(4));
    EXPECT_FALSE(two.grow_to(7));
    EXPECT_EQ(slots.taken(), 4u);  // who is refused holds nothing
    EXPECT_TRUE(two.grow_to(6));
    EXPECT_TRUE(one.grow_to(3));
    EXPECT_FALSE(two.grow_to(8));
    EXPECT_TRUE(two.grow_to(7));
    one.insist_on(5);  // what was promised before
    EXPECT_EQ(slots.taken(), 12u);
    EXPECT_FALSE(two.grow_to(8));
  }
  EXPECT_EQ(slots.taken(), 0u);
}

TEST(AdmissionSlots, MemoryIsHeldUntilTheRequestGoes) {
  AdmissionSlots slots(10, 100, 1);
  {
    HeldSlots one(slots, "a"), two(slots, "a");
    EXPECT_TRUE(one.hold(60));
    EXPECT_FALSE(two.hold(41));
    EXPECT_TRUE(two.hold(40));
  }
  HeldSlots all(slots, "b");
  EXPECT_TRUE(all.hold(100));
}

// So that others find some.
TEST(AdmissionSlots, OneOfSeveralOwnersHasHalfAtMost) {
  AdmissionSlots slots(10, 100, 2);
  HeldSlots one(slots, "a"), more(slots, "a"), other(slots, "b");
  EXPECT_EQ(slots.most_of_owner(), 5u);
  EXPECT_TRUE(one.grow_to(4));
  EXPECT_FALSE(more.grow_to(2));
  EXPECT_TRUE(other.grow_to(5));
  EXPECT_TRUE(one.hold(30));
  EXPECT_FALSE(more.hold(21));
  EXPECT_TRUE(other.hold(50));
  EXPECT_EQ(AdmissionSlots(1, 1, 2).most_of_owner(), 1u);
}

// The first of a request's answers comes behind those of its owner that are as urgent or more.
TEST(AdmissionSlots, RanksCountTheAnswersOfOneOwner) {
  AdmissionSlots slots(100, 100, 2);
  HeldSlots one(slots, "a"), late(slots, "a"), soon(slots, "a"), other(slots, "b");
  for (HeldSlots* held : {&one, &late, &soon, &other}) EXPECT_TRUE(held->grow_to(3));
  EXPECT_EQ(one.rank(0), 0);
  EXPECT_EQ(late.rank(0), 3);
  EXPECT_EQ(soon.rank(-1), 0);
  EXPECT_EQ(other.rank(5), 0);
  {
    HeldSlots more(slots, "a");
    EXPECT_TRUE(more.grow_to(1));
    EXPECT_EQ(more.rank(1), 9);
  }
  HeldSlots more(slots, "a");
  EXPECT_EQ(more.rank(1), 9);  // those that went do not count
}

}  // namespace
}  // namespace invar::server
