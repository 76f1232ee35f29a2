// Properties that every policy has, over random arrivals, removals, budgets, pools and depths.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "scheduler/scheduler.h"

namespace invar {
namespace {

// Requests and what is known of them without the scheduler.
class Simulation {
 public:
  Simulation(const std::string& policy, uint32_t seed) : random_(seed) {
    const int places = 32 << random_() % 3;
    options_.policy = policy;
    options_.max_num_seqs = 1 + random_() % 12;
    options_.max_num_batched_tokens = options_.max_num_seqs + random_() % 200;
    options_.max_model_len = 16 + random_() % 400;
    options_.max_plans_in_flight = 1 + random_() % 4;
    if (random_() % 4 == 0)
      options_.chunk_schedule = ChunkSchedule{.low = static_cast<int32_t>(1 + random_() % 40),
                                              .high = static_cast<int32_t>(40 + random_() % 100),
                                              .max_tokens = 300,
                                              .stages = static_cast<int32_t>(1 + random_() % 5)};
    const int least = (options_.max_model_len + places - 1) / places;
    pool_.emplace(least + (random_() % 2 ? random_() % 3 : random_() % 60), places);
    scheduler_ = make_scheduler(options_, *pool_);
    may_draft_ = random_() % 2;
  }

  void run(int actions) {
    for (int i = 0; i < actions && !::testing::Test::HasFatalFailure(); ++i) {
      const int choice = random_() % 10;
      if (choice < 3)
        add();
      else if (choice == 3)
        remove();
      else
        plan_or_commit();
      ASSERT_EQ(scheduler_->check_integrity(), "");
    }
    finish();
  }

  int preemptions() const { return preemptions_; }
  int in_flight_chunks() const { return in_flight_chunks_; }
  int accepted_drafts() const { return accepted_drafts_; }

 private:
  struct Request {
    int known = 0, planned = 0, last = 0;  // last: tokens when it ends
    int drafts = 0;
    int in_flight = 0;
    bool resident = false;
    int64_t removed_at = -1;
  };

  void add() {
    if (live_.size() > 30) return;
    Request r;
    r.known = 1 + random_() % options_.max_model_len;
    r.last = std::min<int>(options_.max_model_len, r.known + 1 + random_() % 40);
    if (r.known == r.last) --r.known;
    if (r.known == 0) return;
    r.drafts = may_draft_ ? random_() % 5 : 0;
    scheduler_->add({.id = next_id_, .tokens = r.known, .drafts = r.drafts});
    live_[next_id_++] = r;
  }

  void remove() {
    if (live_.empty() || random_() % 3) return;
    const auto it = std::next(live_.begin(), random_() % live_.size());
    scheduler_->remove(it->first);
    live_.erase(it);
    scheduler_->remove(next_id_ + 5);  // nobody
  }

  void plan_or_commit() {
    if (in_flight_.empty() || random_() % 2) {
      if (!plan() && !in_flight_.empty()) commit();
    } else {
      commit();
    }
  }

  // Returns whether anything was planned.
  bool plan() {
    StepPlan plan;
    const int budget = random_() % 4 ? 1 << 20 : 1 + random_() % 64;
    scheduler_->plan(budget, plan);
    EXPECT_LE(plan.rows(), std::min(budget, options_.max_num_batched_tokens));
    EXPECT_LE(scheduler_->num_running(), options_.max_num_seqs);
    for (const int64_t id : plan.preempted) {
      Request& r = live_.at(id);
      EXPECT_TRUE(r.resident);
      EXPECT_EQ(r.in_flight, 0);
      r.resident = false;
      r.planned = 0;
      ++preemptions_;
    }
    for (const int64_t id : plan.admitted) {
      Request& r = live_.at(id);
      EXPECT_FALSE(r.resident);
      r.resident = true;
      // First come, first served: nobody older still waits.
      for (const auto& [other, q] : live_)
        EXPECT_TRUE(q.resident || other > id) << other << " was overtaken by " << id;
    }
    std::set<int64_t> ids;
    std::set<int32_t> written;
    for (const StepEntry& e : plan.entries) {
      EXPECT_TRUE(ids.insert(e.id).second) << "planned twice";
      Request& r = live_.at(e.id);
      EXPECT_TRUE(r.resident);
      EXPECT_EQ(e.start, r.planned);
      EXPECT_GE(e.rows, 1);
      EXPECT_LE(e.start + e.rows, r.known) << "a token that nobody knows";
      EXPECT_EQ(e.draws, e.start + e.rows == r.known);
      EXPECT_LE(e.drafts, e.draws ? r.drafts : 0);
      EXPECT_LE(r.known + e.drafts, options_.max_model_len);
      const auto pages = scheduler_->pages(e.slot);
      const int places = pool_->page_places();
      EXPECT_GE(std::ssize(pages) * places, e.start + e.rows + e.drafts);
      for (int p = e.start / places; p <= (e.start + e.rows + e.drafts - 1) / places; ++p)
        EXPECT_TRUE(written.insert(pages[p]).second) << "two sequences write one page";
      in_flight_chunks_ += r.in_flight > 0;
      r.planned += e.rows;
      ++r.in_flight;
    }
    if (plan.entries.empty()) return false;
    EXPECT_EQ(plan.number, ++number_);
    in_flight_.push_back(plan);
    EXPECT_LE(std::ssize(in_flight_), options_.max_plans_in_flight);
    EXPECT_EQ(scheduler_->plans_in_flight(), std::ssize(in_flight_));
    return true;
  }

  void commit() {
    const StepPlan plan = step_plan_from_bytes(to_bytes(in_flight_.front()));
    in_flight_.pop_front();
    std::vector<StepResult> results;
    for (const StepEntry& e : plan.entries) {
      const auto it = live_.find(e.id);
      if (it == live_.end()) {  // removed meanwhile
        results.push_back({.new_tokens = static_cast<int32_t>(random_() % 2)});
        continue;
      }
      Request& r = it->second;
      --r.in_flight;
      StepResult result;
      if (e.draws) {
        result.new_tokens = 1 + random_() % (e.drafts + 1);
        result.new_tokens = std::min(result.new_tokens, r.last - r.known);
        accepted_drafts_ += result.new_tokens - 1;
        r.known += result.new_tokens;
        r.planned = r.known - 1;
      }
      result.finished = r.known == r.last || random_() % 200 == 0;
      if (result.finished) live_.erase(it);
      results.push_back(result);
    }
    scheduler_->commit(plan, results);
  }

  // Every request ends, within a bound that only progress in every step can keep.
  void finish() {
    int64_t left = 0;
    for (const auto& [id, r] : live_) left += r.last;
    const int64_t bound = 50 * left + 1000;
    for (int64_t step = 0; !live_.empty() || !in_flight_.empty(); ++step) {
      ASSERT_LT(step, bound) << live_.size() << " requests never end";
      if (!plan()) {
        ASSERT_FALSE(in_flight_.empty()) << live_.size() << " requests wait for nothing";
        commit();
      }
      ASSERT_EQ(scheduler_->check_integrity(), "");
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    EXPECT_EQ(pool_->free_pages(), pool_->num_pages());
    EXPECT_EQ(scheduler_->num_running() + scheduler_->num_waiting(), 0);
  }

  std::mt19937 random_;
  SchedulerOptions options_;
  std::optional<PagePool> pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<int64_t, Request> live_;
  std::deque<StepPlan> in_flight_;
  int64_t next_id_ = 0, number_ = 0;
  bool may_draft_ = false;
  int preemptions_ = 0, in_flight_chunks_ = 0, accepted_drafts_ = 0;
};

class EveryPolicy : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryPolicy, KeepsItsPromisesUnderRandomLoad) {
  int preemptions = 0, in_flight_chunks = 0, accepted_drafts = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Simulation simulation(GetParam(), seed);
    simulation.run(300);
    ASSERT_FALSE(HasFailure());
    preemptions += simulation.preemptions();
    in_flight_chunks += simulation.in_flight_chunks();
    accepted_drafts += simulation.accepted_drafts();
  }
  RecordProperty("preemptions", preemptions);
  if (GetParam() == "sarathi") {
    EXPECT_GT(preemptions, 100);
    EXPECT_GT(in_flight_chunks, 100);
    EXPECT_GT(accepted_drafts, 100);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, ::testing::ValuesIn(scheduler_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace invar
