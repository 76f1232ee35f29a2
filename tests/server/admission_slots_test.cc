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

TEST(AdmissionSlots, WhatIsGivenBackIsFreeWhileOthersHoldTheRequest) {
  AdmissionSlots slots(3, 100, 1);
  HeldSlots done(slots, "a"), next(slots, "a");
  EXPECT_TRUE(done.grow_to(2));
  EXPECT_TRUE(done.hold(60));
  EXPECT_FALSE(next.grow_to(2));
  EXPECT_FALSE(next.hold(60));
  done.give_back();
  EXPECT_EQ(slots.taken(), 0u);
  EXPECT_TRUE(next.grow_to(2));
  EXPECT_TRUE(next.hold(60));
  done.give_back();  // it held nothing more
  EXPECT_EQ(slots.taken(), 2u);
}

TEST(AdmissionSlots, OwnersHaveNumbers) {
  AdmissionSlots slots(10, 100, 2);
  const HeldSlots one(slots, "a"), again(slots, "a"), other(slots, "b"), nobody(slots, "");
  EXPECT_EQ(one.owner_number(), again.owner_number());
  EXPECT_NE(one.owner_number(), other.owner_number());
  EXPECT_NE(nobody.owner_number(), 0);
}

}  // namespace
}  // namespace invar::server
