#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <set>

#include "base/error.h"
#include "support/count_allocations.h"

namespace invar {
namespace {

SchedulerOptions options(int budget, int seqs, int model_len = 1000) {
  SchedulerOptions o;
  o.max_num_batched_tokens = budget;
  o.max_num_seqs = seqs;
  o.max_model_len = model_len;
  return o;
}

std::vector<std::pair<int64_t, int32_t>> rows_of(const StepPlan& plan) {
  std::vector<std::pair<int64_t, int32_t>> rows;
  for (const StepEntry& e : plan.entries) rows.push_back({e.id, e.rows});
  return rows;
}
using Rows = std::vector<std::pair<int64_t, int32_t>>;

// Plans, checks and commits one step; every sampling sequence gets one token.
Rows step(Scheduler& scheduler) {
  StepPlan plan;
  scheduler.plan(1 << 20, plan);
  std::vector<StepResult> results;
  for (const StepEntry& e : plan.entries) results.push_back({.new_tokens = e.samples});
  scheduler.commit(plan, results);
  EXPECT_EQ(scheduler.check_integrity(), "");
  return rows_of(plan);
}

TEST(Sarathi, DecodesNeverWaitForPrompts) {
  BlockPool pool(1000, 32);
  const auto scheduler = make_scheduler(options(64, 8), pool);
  scheduler->add({.id = 1, .tokens = 10});
  scheduler->add({.id = 2, .tokens = 100});
  scheduler->add({.id = 3, .tokens = 20});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 10}, {2, 34}, {3, 20}}));
  EXPECT_EQ(step(*scheduler), (Rows{{1, 1}, {3, 1}, {2, 62}}));
  EXPECT_EQ(step(*scheduler), (Rows{{1, 1}, {3, 1}, {2, 4}}));
  EXPECT_EQ(step(*scheduler), (Rows{{1, 1}, {2, 1}, {3, 1}}));
}

// A sequence whose token is late sits out until it is there, while others go on.
TEST(Sarathi, ALateTokenKeepsItsSequenceOut) {
  BlockPool pool(1000, 32);
  const auto scheduler = make_scheduler(options(64, 8), pool);
  scheduler->add({.id = 1, .tokens = 10, .drafts = 3});
  scheduler->add({.id = 2, .tokens = 20});
  const auto with_late = [&](bool is_late) {
    StepPlan plan;
    scheduler->plan(1 << 20, plan);
    std::vector<StepResult> results;
    for (const StepEntry& e : plan.entries)
      results.push_back({.new_tokens = e.id == 2 || !is_late, .is_late = e.id == 1 && is_late});
    scheduler->commit(plan, results);
    EXPECT_EQ(scheduler->check_integrity(), "");
    return rows_of(plan);
  };
  EXPECT_EQ(with_late(true), (Rows{{1, 10}, {2, 20}}));
  EXPECT_EQ(step(*scheduler), (Rows{{2, 1}}));
  scheduler->settle(1, false);
  EXPECT_EQ(with_late(true), (Rows{{1, 1}, {2, 1}}));  // behind a row with drafts
  EXPECT_EQ(step(*scheduler), (Rows{{2, 1}}));
  scheduler->settle(1, false);
  EXPECT_EQ(with_late(false), (Rows{{1, 1}, {2, 1}}));  // the control: its token is in time
  EXPECT_EQ(with_late(true), (Rows{{1, 1}, {2, 1}}));
  scheduler->settle(1, true);
  EXPECT_EQ(step(*scheduler), (Rows{{2, 1}}));
  EXPECT_EQ(scheduler->num_running(), 1);
}

// The steps until each of the sequences has its first token.
std::map<int64_t, int> first_tokens(Scheduler& scheduler, std::set<int64_t> ids) {
  std::map<int64_t, int> steps;
  StepPlan plan;
  for (int i = 1; !ids.empty(); ++i) {
    scheduler.plan(1 << 20, plan);
    std::vector<StepResult> results;
    for (const StepEntry& e : plan.entries) {
      results.push_back({.new_tokens = e.samples, .finished = e.samples});
      if (e.samples && ids.erase(e.id)) steps[e.id] = i;
    }
    scheduler.commit(plan, results);
    EXPECT_EQ(scheduler.check_integrity(), "");
  }
  return steps;
}

TEST(Sarathi, AShortPromptDoesNotWaitForLongOnes) {
  BlockPool pool(1000, 32);
  const auto scheduler = make_scheduler(options(64, 16, 2000), pool);
  for (int id = 1; id <= 8; ++id) scheduler->add({.id = id, .tokens = 640});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 64}}));
  scheduler->add({.id = 9, .tokens = 20});
  // The oldest has half of the step, the shortest is next, and what it leaves is the oldest's
  // again.
  EXPECT_EQ(step(*scheduler), (Rows{{1, 44}, {9, 20}}));
}

TEST(Sarathi, AShortPromptDoesNotWaitForTheMemoryOfLongOnes) {
  BlockPool pool(50, 32);  // two of the long ones
  const auto scheduler = make_scheduler(options(64, 16, 1000), pool);
  for (int id = 1; id <= 4; ++id) scheduler->add({.id = id, .tokens = 640});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 64}}));
  EXPECT_EQ(step(*scheduler), (Rows{{1, 64}}));
  scheduler->add({.id = 9, .tokens = 20});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 44}, {9, 20}}));
}

TEST(Sarathi, ALongPromptHasHalfOfEveryStepBesideAnyNumberOfShortOnes) {
  BlockPool pool(1000, 32);
  const auto scheduler = make_scheduler(options(64, 16, 1000), pool);
  scheduler->add({.id = 1, .tokens = 640});
  for (int id = 2; id < 200; ++id) scheduler->add({.id = id, .tokens = 32});
  // 32 rows in each, and in the last the other 32 too, since it is as short as the others then.
  EXPECT_EQ(first_tokens(*scheduler, {1})[1], 19);
}

TEST(Sarathi, WhoWaitsForMemoryIsOvertakenByNoMoreThanItsOwnBlocks) {
  BlockPool pool(50, 32);
  const auto scheduler = make_scheduler(options(1024, 64, 1600), pool);
  scheduler->add({.id = 1, .tokens = 32 * 20});
  scheduler->add({.id = 2, .tokens = 32 * 35});  // does not fit beside it
  for (int id = 3; id < 200; ++id) scheduler->add({.id = id, .tokens = 32});
  StepPlan plan;
  scheduler->plan(1 << 20, plan);
  std::vector<int64_t> overtakers;
  for (int i = 0; i < 10; ++i) {
    std::vector<StepResult> results;
    for (const StepEntry& e : plan.entries) {
      if (e.id > 2) overtakers.push_back(e.id);
      results.push_back({.new_tokens = e.samples, .finished = e.id > 2});  // 1 stays
    }
    scheduler->commit(plan, results);
    EXPECT_EQ(scheduler->check_integrity(), "");
    scheduler->plan(1 << 20, plan);
  }
  EXPECT_EQ(overtakers.size(), 35u);
  scheduler->commit(plan, std::vector<StepResult>{{.new_tokens = 1, .finished = true}});
  EXPECT_EQ(step(*scheduler).front().first, 2);
}

TEST(Sarathi, LaterChunksMayBeInFlightButNoUnknownToken) {
  BlockPool pool(1000, 32);
  SchedulerOptions o = options(64, 8);
  o.max_plans_in_flight = 4;
  const auto scheduler = make_scheduler(o, pool);
  scheduler->add({.id = 1, .tokens = 150});
  StepPlan plans[5];
  for (StepPlan& plan : plans) scheduler->plan(1 << 20, plan);
  EXPECT_EQ(rows_of(plans[0]), (Rows{{1, 64}}));
  EXPECT_EQ(rows_of(plans[1]), (Rows{{1, 64}}));
  EXPECT_EQ(rows_of(plans[2]), (Rows{{1, 22}}));
  EXPECT_TRUE(plans[2].entries[0].samples);
  EXPECT_TRUE(plans[3].entries.empty());  // the next token is not known
  scheduler->commit(plans[0], std::vector<StepResult>{{.new_tokens = 0}});
  scheduler->commit(plans[1], std::vector<StepResult>{{.new_tokens = 0}});
  scheduler->plan(1 << 20, plans[3]);
  EXPECT_TRUE(plans[3].entries.empty());
  scheduler->commit(plans[2], std::vector<StepResult>{{.new_tokens = 1}});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 1}}));
}

// Without it the first plan has all five, and there is nothing for the second.
TEST(Sarathi, PlansInFlightDivideWhoDecodes) {
  for (const bool splits : {true, false}) {
    BlockPool pool(1000, 32);
    SchedulerOptions o = options(64, 8);
    o.max_plans_in_flight = 2;
    o.splits_decodes = splits;
    const auto scheduler = make_scheduler(o, pool);
    for (int id = 1; id <= 5; ++id) scheduler->add({.id = id, .tokens = 3});
    step(*scheduler);  // the prompts
    StepPlan first, second;
    scheduler->plan(1 << 20, first);
    scheduler->plan(1 << 20, second);
    if (!splits) {
      EXPECT_EQ(first.entries.size(), 5U);
      EXPECT_TRUE(second.entries.empty());
      continue;
    }
    EXPECT_EQ(rows_of(first), (Rows{{1, 1}, {2, 1}, {3, 1}}));
    EXPECT_EQ(rows_of(second), (Rows{{4, 1}, {5, 1}}));
    scheduler->commit(first, std::vector<StepResult>(3, {.new_tokens = 1}));
    scheduler->plan(1 << 20, first);
    EXPECT_EQ(rows_of(first), (Rows{{1, 1}, {2, 1}, {3, 1}}));
  }
}

TEST(Sarathi, TheYoungestIsPreemptedAndComesBackFirst) {
  // Two sequences of 32 tokens fill 2 of 3 blocks; each needs another block for the next row.
  BlockPool pool(3, 32);
  const auto scheduler = make_scheduler(options(512, 4, 96), pool);
  scheduler->add({.id = 1, .tokens = 32});
  scheduler->add({.id = 2, .tokens = 32});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 32}, {2, 32}}));
  scheduler->add({.id = 3, .tokens = 5});
  StepPlan plan;
  scheduler->plan(1 << 20, plan);
  EXPECT_EQ(rows_of(plan), (Rows{{1, 1}}));
  EXPECT_EQ(plan.preempted, std::vector<int64_t>{2});
  scheduler->commit(plan, std::vector<StepResult>{{.new_tokens = 1, .finished = true}});
  scheduler->plan(1 << 20, plan);
  EXPECT_EQ(plan.admitted, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(rows_of(plan), (Rows{{2, 33}, {3, 5}}));  // prompt and the token sampled
}

TEST(Sarathi, TheHeadOfTheQueueWaitsForItsWholePromptAboveTheWatermark) {
  BlockPool pool(200, 32);  // the watermark is 2 blocks
  const auto scheduler = make_scheduler(options(512, 8, 6400), pool);
  scheduler->add({.id = 1, .tokens = 32 * 10});
  scheduler->add({.id = 2, .tokens = 32 * 189});
  scheduler->add({.id = 3, .tokens = 32 * 189});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 320}}));  // 189 blocks + 2 do not fit into 190
  EXPECT_EQ(scheduler->num_waiting(), 2);         // and nobody of its size overtakes
  scheduler->remove(2);
  scheduler->remove(3);
  scheduler->add({.id = 4, .tokens = 1});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 1}, {4, 1}}));
}

// Where ranks are places among one owner's answers, the owner's short one does not wait for its
// long ones. Without that, ranks are what users say: strict.
TEST(Sarathi, AnOwnersShortPromptDoesNotWaitForItsLongOnes) {
  for (const bool are_places : {true, false}) {
    BlockPool pool(1000, 32);
    SchedulerOptions o = options(64, 16, 2000);
    o.urgent_take_slots = are_places;
    const auto scheduler = make_scheduler(o, pool);
    for (int id = 1; id <= 4; ++id) scheduler->add({.id = id, .tokens = 640, .priority = id - 1});
    EXPECT_EQ(step(*scheduler), (Rows{{1, 64}}));
    scheduler->add({.id = 9, .tokens = 20, .priority = 4});
    const auto steps = first_tokens(*scheduler, {1, 2, 3, 4, 9});
    EXPECT_EQ(steps.at(9) == 1, are_places) << steps.at(9);
    EXPECT_LE(steps.at(1), 11) << "and the first of them goes on";
    EXPECT_EQ(steps.size(), 5u);
  }
}

// Nobody is kept waiting for room that an empty pool could only keep to itself.
TEST(Scheduler, APromptThatFillsAnIdlePoolIsAdmitted) {
  for (const std::string& policy : scheduler_names())
    for (const int blocks : {99, 100, 200, 1000}) {
      BlockPool pool(blocks, 32);
      SchedulerOptions o = options(32 * blocks, 8, 32 * blocks);
      o.policy = policy;
      const auto scheduler = make_scheduler(o, pool);
      scheduler->add({.id = 1, .tokens = 32 * blocks - 1});
      EXPECT_EQ(step(*scheduler), (Rows{{1, 32 * blocks - 1}})) << policy << " of " << blocks;
    }
}

TEST(Sarathi, BlocksPromisedToAResidentPromptAreNotGivenTwice) {
  BlockPool pool(100, 32);
  const auto scheduler = make_scheduler(options(64, 8, 3200), pool);
  scheduler->add({.id = 1, .tokens = 32 * 60});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 64}}));
  EXPECT_EQ(pool.free_blocks(), 98);  // taken as rows are planned
  scheduler->add({.id = 2, .tokens = 32 * 60});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 64}}));
  EXPECT_EQ(scheduler->num_waiting(), 1);
}

TEST(Sarathi, DraftsTakeOnlyWhatNobodyElseWants) {
  BlockPool pool(100, 32);
  const auto scheduler = make_scheduler(options(16, 8), pool);
  scheduler->add({.id = 1, .tokens = 3, .drafts = 6});
  scheduler->add({.id = 2, .tokens = 3, .drafts = 6});
  step(*scheduler);
  StepPlan plan;
  scheduler->plan(1 << 20, plan);
  ASSERT_EQ(plan.entries.size(), 2u);
  EXPECT_EQ(plan.entries[0].drafts, 6);
  EXPECT_EQ(plan.entries[1].drafts, 6);
  scheduler->commit(plan, std::vector<StepResult>{{.new_tokens = 7}, {.new_tokens = 1}});
  scheduler->add({.id = 3, .tokens = 12});
  scheduler->plan(1 << 20, plan);
  ASSERT_EQ(rows_of(plan), (Rows{{1, 1}, {2, 1}, {3, 12}}));
  EXPECT_EQ(plan.entries[0].start, 10);
  EXPECT_EQ(plan.entries[1].start, 4);
  EXPECT_EQ(plan.entries[0].drafts, 2);
  EXPECT_EQ(plan.entries[1].drafts, 0);
}

TEST(Sarathi, ChunksShrinkWithTheSchedule) {
  const ChunkSchedule schedule{.low = 128, .high = 2048, .max_tokens = 131072, .stages = 16};
  EXPECT_EQ(scheduled_chunk(schedule, 0), 2048);
  EXPECT_EQ(scheduled_chunk(schedule, 8191), 2048);
  EXPECT_EQ(scheduled_chunk(schedule, 8192), 1920);
  EXPECT_EQ(scheduled_chunk(schedule, 131071), 128);
  EXPECT_EQ(scheduled_chunk(schedule, 1 << 30), 128);
  EXPECT_EQ(scheduled_chunk({.low = 1, .high = 1, .max_tokens = 10, .stages = 1}, 0), 32);

  BlockPool pool(100, 32);
  SchedulerOptions o = options(512, 8);
  o.chunk_schedule = ChunkSchedule{.low = 32, .high = 96, .max_tokens = 192, .stages = 3};
  const auto scheduler = make_scheduler(o, pool);
  scheduler->add({.id = 1, .tokens = 200});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 96}}));
  EXPECT_EQ(step(*scheduler), (Rows{{1, 64}}));
  EXPECT_EQ(step(*scheduler), (Rows{{1, 32}}));
  EXPECT_EQ(step(*scheduler), (Rows{{1, 8}}));
}

TEST(Scheduler, RemovalFreesBlocksWhenNoPlanUsesThem) {
  BlockPool pool(10, 32);
  SchedulerOptions o = options(32, 8, 320);
  o.max_plans_in_flight = 2;
  const auto scheduler = make_scheduler(o, pool);
  scheduler->add({.id = 1, .tokens = 100});
  StepPlan first, second;
  scheduler->plan(1 << 20, first);
  scheduler->plan(1 << 20, second);
  scheduler->remove(1);
  scheduler->add({.id = 1, .tokens = 5});  // the name is free again, the blocks are not
  EXPECT_EQ(pool.free_blocks(), 8);
  scheduler->commit(first, std::vector<StepResult>(1));
  EXPECT_EQ(pool.free_blocks(), 8);
  scheduler->commit(second, std::vector<StepResult>(1));
  EXPECT_EQ(pool.free_blocks(), 10);
  EXPECT_EQ(step(*scheduler), (Rows{{1, 5}}));
}

TEST(Scheduler, TheUrgentComeFirstAndThenTheOldest) {
  BlockPool pool(100, 32);
  const auto scheduler = make_scheduler(options(512, 1), pool);
  for (const auto& [id, priority] : {std::pair{1, 0}, {2, 5}, {3, -1}, {4, 0}, {5, -1}})
    scheduler->add({.id = id, .tokens = 3, .priority = priority});
  std::vector<int64_t> order;
  for (StepPlan plan; scheduler->num_waiting() > 0;) {
    scheduler->plan(1 << 20, plan);
    order.push_back(plan.entries.at(0).id);
    scheduler->commit(plan, std::vector<StepResult>{{.new_tokens = 1, .finished = true}});
    EXPECT_EQ(scheduler->check_integrity(), "");
  }
  EXPECT_EQ(order, (std::vector<int64_t>{3, 5, 1, 4, 2}));
}

SchedulerOptions shared_options(int32_t max_num_seqs) {
  SchedulerOptions o = options(512, max_num_seqs);
  o.urgent_take_slots = true;
  return o;
}

// Ends what the next plan computes; its first id.
int64_t end_next(Scheduler& scheduler) {
  StepPlan plan;
  scheduler.plan(1 << 20, plan);
  const int64_t first = plan.entries.at(0).id;
  scheduler.commit(
      plan, std::vector<StepResult>(plan.entries.size(), {.new_tokens = 1, .finished = true}));
  EXPECT_EQ(scheduler.check_integrity(), "");
  return first;
}

// The k-th of one comes before the next one of another, at every moment: who asks anew comes behind
// those that wait for as many.
TEST(Scheduler, OwnersTakeTurns) {
  BlockPool pool(100, 32);
  const auto scheduler = make_scheduler(shared_options(1), pool);
  int64_t id = 0;
  const auto add = [&](int64_t owner, int32_t priority = 0) {
    scheduler->add({.id = ++id, .tokens = 3, .priority = priority, .owner = owner});
  };
  for (int i = 0; i < 3; ++i) add(7);
  add(-8);
  add(7, -1);  // before the others of its owner
  std::vector<int64_t> order{end_next(*scheduler)};
  add(-8);
  add(-8);
  while (scheduler->num_waiting() > 0) order.push_back(end_next(*scheduler));
  EXPECT_EQ(order, (std::vector<int64_t>{4, 5, 6, 1, 7, 2, 3}));
}

TEST(Scheduler, FirstComeIsFirstServedWhoeverTheOwner) {
  BlockPool pool(100, 32);
  SchedulerOptions o = shared_options(1);
  o.policy = "fcfs";
  const auto scheduler = make_scheduler(o, pool);
  for (int64_t id = 1; id <= 4; ++id)
    scheduler->add({.id = id, .tokens = 3, .owner = id < 4 ? 7 : 8});
  std::vector<int64_t> order;
  while (scheduler->num_waiting() > 0) order.push_back(end_next(*scheduler));
  EXPECT_EQ(order, (std::vector<int64_t>{1, 2, 3, 4}));
}

// One owner asks for five at once. Another one asks again whenever it has an answer: each of the
// five has its turn all the same. The control: whose ranks were settled when they came waits on.
TEST(Scheduler, NoOwnersSequenceWaitsForEver) {
  for (const bool has_owners : {true, false}) {
    BlockPool pool(100, 32);
    const auto scheduler = make_scheduler(shared_options(1), pool);
    for (int32_t k = 0; k < 5; ++k)
      scheduler->add({.id = k, .tokens = 3, .priority = has_owners ? 0 : k, .owner = has_owners});
    int ended = 0;
    for (int64_t id = 100, last = id; id < 112; ++id) {
      if (last >= 100) scheduler->add({.id = id, .tokens = 3, .owner = has_owners ? 2 : 0});
      last = end_next(*scheduler);
      ended += last < 5;
    }
    EXPECT_EQ(ended == 5, has_owners) << ended;
  }
}

// A resident makes way for one of another owner that comes before it, and not for a later one of
// its own.
TEST(Scheduler, AnOwnersSecondMakesWayForTheFirstOfAnother) {
  BlockPool pool(100, 32);
  SchedulerOptions o = shared_options(2);
  o.max_model_len = 200;
  const auto scheduler = make_scheduler(o, pool);
  scheduler->add({.id = 1, .tokens = 3, .owner = 7});
  scheduler->add({.id = 2, .tokens = 3, .owner = 7});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 3}, {2, 3}}));
  scheduler->add({.id = 3, .tokens = 3, .owner = 7});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 1}, {2, 1}}));
  scheduler->add({.id = 4, .tokens = 5, .owner = 8});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 1}, {4, 5}}));
  scheduler->remove(1);  // 2 is the first of its owner now, and older than 4
  EXPECT_EQ(step(*scheduler), (Rows{{4, 1}, {2, 5}}));
  EXPECT_EQ(scheduler->check_integrity(), "");
}

// Ids in the order in which they are admitted where one fits at a time.
std::vector<int64_t> admitted_by(const std::string& policy) {
  BlockPool pool(100, 32);
  SchedulerOptions o = options(512, 1);
  o.policy = policy;
  const auto scheduler = make_scheduler(o, pool);
  for (const auto& [id, priority, tokens] : {std::tuple{1, 0, 9}, {2, 5, 3}, {3, -1, 9}, {4, 0, 3}})
    scheduler->add({.id = id, .tokens = tokens, .priority = priority});
  std::vector<int64_t> order;
  for (StepPlan plan; scheduler->num_waiting() > 0;) {
    scheduler->plan(1 << 20, plan);
    order.push_back(plan.entries.at(0).id);
    scheduler->commit(plan, std::vector<StepResult>{{.new_tokens = 1, .finished = true}});
  }
  return order;
}

TEST(Scheduler, APolicyOwnsTheOrderOfItsQueue) {
  EXPECT_EQ(admitted_by("fcfs"), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(admitted_by("priority"), (std::vector<int64_t>{3, 1, 4, 2}));
}

// Blocks that run out are taken from the youngest, and with the policy priority from the one that
// is the least urgent.
TEST(Scheduler, ThePolicyPriorityTakesBlocksFromTheLeastUrgent) {
  for (const auto& [policy, victim] : {std::pair{"sarathi", 2}, {"priority", 1}}) {
    BlockPool pool(2, 32);
    SchedulerOptions o = options(512, 2, 64);
    o.policy = policy;
    const auto scheduler = make_scheduler(o, pool);
    scheduler->add({.id = 1, .tokens = 31, .priority = 1});
    scheduler->add({.id = 2, .tokens = 31, .priority = 0});
    StepPlan plan;
    std::vector<int64_t> preempted;
    for (int i = 0; i < 3 && preempted.empty(); ++i) {
      scheduler->plan(1 << 20, plan);
      preempted = plan.preempted;
      scheduler->commit(plan, std::vector<StepResult>(plan.entries.size(), {.new_tokens = 1}));
    }
    EXPECT_EQ(preempted, std::vector<int64_t>{victim}) << policy;
  }
}

TEST(Scheduler, TheLongestCachedPrefixIsAdmittedFirst) {
  for (const auto& [policy, first] : {std::pair{"longest-prefix", 3}, {"fcfs", 2}}) {
    BlockPool pool(100, 32);
    PrefixCache cache(pool);
    SchedulerOptions o = options(512, 1);
    o.policy = policy;
    const auto scheduler = make_scheduler(o, pool, &cache);
    std::vector<int32_t> known(64, 7), other(64, 8);
    scheduler->add({.id = 1, .tokens = 64, .prefix = &known});
    StepPlan plan;
    scheduler->plan(1 << 20, plan);
    known.push_back(1);
    scheduler->add({.id = 2, .tokens = 64, .prefix = &other});
    scheduler->add({.id = 3, .tokens = 64, .prefix = &known});
    scheduler->commit(plan, std::vector<StepResult>{{.new_tokens = 1, .finished = true}});
    scheduler->plan(1 << 20, plan);
    EXPECT_EQ(plan.entries.at(0).id, first) << policy;
    EXPECT_EQ(plan.entries.at(0).start, first == 3 ? 32 : 0) << policy;
  }
}

// A sequence's states go to the prefix cache at the last boundary of each of its chunks, and
// whoever begins alike takes them from there into a cell of its own.
TEST(Scheduler, StatesAreKeptAtBoundariesAndTaken) {
  BlockPool pool(100, 64);
  PrefixCache cache(pool, SnapshotCells{.first = 5, .count = 3});
  SchedulerOptions o = options(200, 2);
  o.policy = "fcfs";
  o.has_states = true;
  const auto scheduler = make_scheduler(o, pool, &cache);
  std::vector<int32_t> known(300, 7), other(300, 7);
  other.back() = 8;
  scheduler->add({.id = 1, .tokens = 300, .prefix = &known});
  StepPlan plan;
  const auto next = [&](std::vector<StepResult> results) {
    scheduler->plan(1 << 20, plan);
    scheduler->commit(plan, results);
    EXPECT_EQ(scheduler->check_integrity(), "");
    return rows_of(plan);
  };
  EXPECT_EQ(next({{}}), (Rows{{1, 192}}));  // three whole chunks of the 200 rows
  EXPECT_EQ(scheduler->cell(0), 0);
  EXPECT_TRUE(plan.state_copies.empty());
  known.push_back(1);
  EXPECT_EQ(next({{.new_tokens = 1}}), (Rows{{1, 108}}));
  EXPECT_EQ(plan.state_copies, (std::vector<CellCopy>{{0, 5}}));  // behind 192
  scheduler->add({.id = 2, .tokens = 300, .prefix = &other});
  known.push_back(1);
  other.push_back(1);
  EXPECT_EQ(next({{.new_tokens = 1}, {.new_tokens = 1}}), (Rows{{1, 1}, {2, 44}}));  // behind 256
  EXPECT_EQ(plan.state_copies, (std::vector<CellCopy>{{0, 6}, {6, 1}}));
  EXPECT_EQ(plan.entries.at(1).start, 256);
}

// The control: without states a chunk ends anywhere, and nothing is copied.
TEST(Scheduler, WithoutStatesChunksEndAnywhere) {
  BlockPool pool(100, 64);
  PrefixCache cache(pool);
  SchedulerOptions o = options(200, 2);
  o.policy = "fcfs";
  const auto scheduler = make_scheduler(o, pool, &cache);
  scheduler->add({.id = 1, .tokens = 300});
  EXPECT_EQ(step(*scheduler), (Rows{{1, 200}}));
  EXPECT_EQ(step(*scheduler), (Rows{{1, 100}}));
}

// Where that is asked for: a place, or blocks.
TEST(Scheduler, TheUrgentTakeWhatLessUrgentOnesHave) {
  for (const bool take : {true, false}) {
    for (const auto& [blocks, seqs] : {std::pair(1000, 2), std::pair(8, 64)}) {
      BlockPool pool(blocks, 32);
      SchedulerOptions o = options(512, seqs, 200);
      o.urgent_take_slots = take;
      const auto scheduler = make_scheduler(o, pool);
      scheduler->add({.id = 1, .tokens = 100, .priority = 1});
      scheduler->add({.id = 2, .tokens = 120, .priority = 2});
      EXPECT_EQ(step(*scheduler), (Rows{{1, 100}, {2, 120}}));
      scheduler->add({.id = 3, .tokens = 120, .priority = 2});  // as urgent as who has the place
      EXPECT_EQ(step(*scheduler), (Rows{{1, 1}, {2, 1}}));
      scheduler->add({.id = 4, .tokens = 40, .priority = 0});
      const Rows rows = step(*scheduler);
      EXPECT_EQ(rows.size(), 2u);
      EXPECT_EQ(rows == (Rows{{1, 1}, {4, 40}}), take);
      scheduler->remove(1);
      for (int i = 0; i < 3; ++i) step(*scheduler);
      EXPECT_EQ(scheduler->num_running(), 2);
      scheduler->remove(take ? 4 : 2);
      for (int i = 0; i < 3; ++i) step(*scheduler);
      EXPECT_EQ(scheduler->num_waiting(), 0);
    }
  }
}

// One of two plans that are in flight computes who is to make way: it comes out of flight first.
TEST(Scheduler, WhoIsInFlightMakesWayAfterIt) {
  BlockPool pool(1000, 32);
  SchedulerOptions o = options(512, 1, 500);
  o.urgent_take_slots = true;
  o.max_plans_in_flight = 2;
  const auto scheduler = make_scheduler(o, pool);
  scheduler->add({.id = 1, .tokens = 10, .ahead_until = 400, .priority = 1});
  StepPlan plans[2];
  const auto commit = [&](StepPlan& plan) {
    std::vector<StepResult> results;
    for (const StepEntry& e : plan.entries) results.push_back({.new_tokens = e.samples});
    scheduler->commit(plan, results);
  };
  scheduler->plan(1 << 20, plans[0]);
  scheduler->plan(1 << 20, plans[1]);
  scheduler->add({.id = 2, .tokens = 10, .priority = 0});
  bool has_begun = false;
  for (int i = 0; i < 6 && !has_begun; ++i) {
    commit(plans[i % 2]);
    scheduler->plan(1 << 20, plans[i % 2]);
    EXPECT_EQ(scheduler->check_integrity(), "");
    for (const StepEntry& e : plans[i % 2].entries) has_begun |= e.id == 2;
  }
  EXPECT_TRUE(has_begun);
}

// A removal that looked through all who wait would take minutes here.
TEST(Scheduler, RemovingThoseWhoWaitTakesAsLongHoweverManyTheyAre) {
  BlockPool pool(100, 32);
  const auto scheduler = make_scheduler(options(512, 1), pool);
  constexpr int64_t kMany = 400'000;
  const std::clock_t begin = std::clock();  // processor time: others may use the machine, too
  for (int64_t id = 0; id < kMany; ++id) scheduler->add({.id = id, .tokens = 3});
  for (int64_t id = 0; id < kMany; id += id % 1000 == 998 ? 2 : 1) scheduler->remove(id);
  EXPECT_LT(std::clock() - begin, 10 * CLOCKS_PER_SEC);
  EXPECT_EQ(scheduler->num_waiting(), kMany / 1000);
  EXPECT_EQ(scheduler->check_integrity(), "");
  EXPECT_EQ(step(*scheduler), (Rows{{999, 3}}));
}

TEST(Scheduler, ALeakIsFound) {
  BlockPool pool(10, 32);
  const auto scheduler = make_scheduler(options(32, 8, 320), pool);
  EXPECT_EQ(scheduler->check_integrity(), "");
  pool.allocate();
  EXPECT_EQ(scheduler->check_integrity(1), "");
  EXPECT_EQ(scheduler->check_integrity(), "1 references to blocks are counted but 0 are held");
}

TEST(Scheduler, AbsurdOptionsAreRefused) {
  BlockPool pool(10, 32);
  const auto refuses = [&](auto change) {
    SchedulerOptions o = options(512, 8, 320);
    EXPECT_NO_THROW(make_scheduler(o, pool));
    change(o);
    EXPECT_THROW(make_scheduler(o, pool), UsageError);
  };
  refuses([](SchedulerOptions& o) { o.policy = "fifo"; });
  refuses([](SchedulerOptions& o) { o.max_num_seqs = 0; });
  refuses([](SchedulerOptions& o) { o.max_num_batched_tokens = 7; });
  refuses([](SchedulerOptions& o) { o.max_model_len = 0; });
  refuses([](SchedulerOptions& o) { o.max_model_len = 321; });
  refuses([](SchedulerOptions& o) { o.max_plans_in_flight = 5; });
  refuses([](SchedulerOptions& o) { o.chunk_schedule = ChunkSchedule{.low = 0}; });
  refuses([](SchedulerOptions& o) { o.chunk_schedule = ChunkSchedule{.stages = 0}; });
  const auto scheduler = make_scheduler(options(512, 8, 320), pool);
  EXPECT_THROW(scheduler->add({.id = 1, .tokens = 321}), UsageError);
}

TEST(Scheduler, AWarmStepWithAThousandSequencesDoesNotAllocate) {
  BlockPool pool(4000, 32);
  const auto scheduler = make_scheduler(options(2048, 1000, 128), pool);
  for (int i = 0; i < 1000; ++i) scheduler->add({.id = i, .tokens = 10});
  StepPlan plan;
  std::vector<StepResult> results;
  for (int i = 0; i < 100; ++i) {
    const int64_t before = allocation_count();
    scheduler->plan(1 << 20, plan);
    if (i >= 70) {  // by then every table has its three blocks
      EXPECT_EQ(allocation_count(), before);
    }
    results.clear();
    for (const StepEntry& e : plan.entries) results.push_back({.new_tokens = e.samples});
    const int64_t between = allocation_count();
    scheduler->commit(plan, results);
    EXPECT_EQ(allocation_count(), between);
  }
  EXPECT_EQ(plan.entries.size(), 1000u);
}

}  // namespace
}  // namespace invar
