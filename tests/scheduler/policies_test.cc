// Properties that every policy has, over random arrivals, removals, budgets, pools and depths.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "base/fields.h"
#include "kv/cell_placement.h"
#include "scheduler/policies.h"
#include "scheduler/scheduler.h"

namespace invar {
namespace {

bool keeps_arrival(const std::string& policy) {
  return computes_whole_prompts(policy) || policy == "fcfs";
}

// Requests, and what is known of them without the scheduler. Every place of the pool has a key, a
// hash of the tokens up to there: a slot that is read holds the key of its sequence, whatever was
// planned, taken away, shared or given up before.
class Simulation {
 public:
  Simulation(const std::string& policy, uint32_t seed) : random_(seed) {
    const int slots = 32 << random_() % 3;
    options_.policy = policy;
    options_.max_num_seqs = 1 + random_() % 12;
    options_.max_num_batched_tokens = options_.max_num_seqs + random_() % 200;
    options_.max_model_len = 16 + random_() % 400;
    options_.max_plans_in_flight = 1 + random_() % 4;
    options_.splits_decodes = random_() % 2 == 0;
    if (computes_whole_prompts(policy)) options_.max_num_batched_tokens += options_.max_model_len;
    if (random_() % 4 == 0)
      options_.chunk_schedule = ChunkSchedule{.low = static_cast<int32_t>(1 + random_() % 40),
                                              .high = static_cast<int32_t>(40 + random_() % 100),
                                              .max_tokens = 300,
                                              .stages = static_cast<int32_t>(1 + random_() % 5)};
    const int least = (options_.max_model_len + slots - 1) / slots;
    pool_.emplace(least + (random_() % 2 ? random_() % 3 : random_() % 60), slots);
    memory_.resize(pool_->num_blocks() * slots, 0);
    options_.has_states = random_() % 2 == 0;
    if (options_.has_states)
      options_.max_num_batched_tokens =
          std::max(options_.max_num_batched_tokens, 2 * kBoundary) + options_.max_num_seqs;
    const SnapshotCells snapshots{options_.max_num_seqs + 3, static_cast<int32_t>(random_() % 6)};
    states_.resize(snapshots.first + snapshots.count);
    if (random_() % 3)
      cache_.emplace(*pool_, options_.has_states ? std::optional(snapshots) : std::nullopt,
                     random_() % 2 ? ~uint64_t{0} : uint64_t{7});
    scheduler_ = make_scheduler(options_, *pool_, cache_ ? &*cache_ : nullptr);
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
  int cached_slots() const { return cached_slots_; }
  int overtakings() const { return overtakings_; }
  int ahead() const { return ahead_; }
  int in_vain() const { return in_vain_; }
  int state_copies() const { return state_copies_; }

 private:
  using Key = uint64_t;

  struct Request {
    std::vector<int32_t> tokens;
    std::vector<Key> keys;      // of the tokens
    int planned = 0, last = 0;  // last: tokens when it ends
    int drafts = 0;
    int ahead_until = 0;
    int in_flight = 0;
    bool resident = false;
    bool uses_cache = false;

    int known() const { return static_cast<int>(tokens.size()); }
    Key key_of(int32_t token) const {
      const Key before = keys.empty() ? Key{uses_cache} : keys.back();
      return (before ^ token) * 0x9E3779B97F4A7C15 + 1;
    }
    void push(int32_t token) {
      keys.push_back(key_of(token));
      tokens.push_back(token);
    }
    // The token that a plan in flight samples, once a row of it was planned.
    int32_t foreseen = -1;
    void foresee(int32_t token) { foreseen = token; }
    Key next_key() const { return key_of(foreseen); }
  };

  void add() {
    if (live_.size() > 30) return;
    const int known = 1 + random_() % (options_.max_model_len - 1);
    auto r = std::make_unique<Request>();
    r->last = std::min<int>(options_.max_model_len, known + 1 + random_() % 40);
    r->drafts = may_draft_ ? random_() % 5 : 0;
    // It ends when it comes to that, or before: `last` is what nobody foresees.
    if (r->drafts == 0 && random_() % 2)
      r->ahead_until = std::min<int>(options_.max_model_len, r->last + random_() % 20);
    r->uses_cache = random_() % 4;
    // Prompts begin alike and differ from some slot on.
    const int alike = random_() % (known + 1);
    for (int i = 0; i < known; ++i) r->push(i < alike ? 7 : random_() % 100);
    r->tokens.reserve(options_.max_model_len);
    scheduler_->add({.id = next_id_,
                     .tokens = known,
                     .drafts = r->drafts,
                     .ahead_until = r->ahead_until,
                     .prefix = r->uses_cache ? &r->tokens : nullptr,
                     .cache_salt = r->uses_cache ? "salt" : ""});
    live_[next_id_++] = std::move(r);
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
  bool plan(bool may_be_short = true) {
    StepPlan plan;
    const int budget = may_be_short && random_() % 4 == 0 ? 1 + random_() % 64 : 1 << 20;
    scheduler_->plan(budget, plan);
    EXPECT_LE(plan.rows(), std::min(budget, options_.max_num_batched_tokens));
    EXPECT_LE(scheduler_->num_running(), options_.max_num_seqs);
    for (const int64_t id : plan.preempted) {
      Request& r = *live_.at(id);
      EXPECT_TRUE(r.resident);
      EXPECT_EQ(r.in_flight, 0);
      r.resident = false;
      r.planned = 0;
      ++preemptions_;
    }
    for (const int64_t id : plan.admitted) {
      Request& r = *live_.at(id);
      EXPECT_FALSE(r.resident);
      r.resident = true;
      for (const StepEntry& e : plan.entries)  // what the cache had need not be computed
        if (e.id == id) cached_slots_ += r.planned = e.start;
      EXPECT_EQ(r.planned % pool_->block_size(), 0);
      EXPECT_TRUE(r.planned == 0 || (cache_ && r.uses_cache));
      expect_its_turn(id, r);
    }
    for (const CellCopy& copy : plan.state_copies) states_.at(copy.to) = states_.at(copy.from);
    state_copies_ += static_cast<int>(plan.state_copies.size());
    std::set<int64_t> ids;
    std::set<int32_t> written, cells;
    int crossed = 0;
    for (const StepEntry& e : plan.entries) {
      EXPECT_TRUE(ids.insert(e.id).second) << "planned twice";
      Request& r = *live_.at(e.id);
      EXPECT_TRUE(r.resident);
      EXPECT_EQ(e.start, r.planned);
      EXPECT_GE(e.rows, 1);
      const bool is_ahead = e.start == r.known();
      if (is_ahead) {
        EXPECT_EQ(e.rows, 1);
        EXPECT_GT(r.in_flight, 0) << "a token that nobody samples";
        EXPECT_LT(r.known() + 1, r.ahead_until) << "a row behind the end";
        ++ahead_;
      } else {
        EXPECT_LE(e.start + e.rows, r.known()) << "a token that nobody knows";
      }
      EXPECT_EQ(e.samples, e.start + e.rows >= r.known());
      EXPECT_LE(e.drafts, e.samples ? r.drafts : 0);
      EXPECT_LE(r.known() + e.drafts, options_.max_model_len);
      const int slots = pool_->block_size(), end = e.start + e.rows + e.drafts;
      EXPECT_GE(std::ssize(scheduler_->blocks(e.sequence)) * slots, end);
      for (int i = 0; i < e.start; ++i) EXPECT_EQ(at(e, i), r.keys[i]) << "slot " << i;
      if (is_ahead) r.foresee(random_() % 2 ? 7 : 8);
      EXPECT_TRUE(cells.insert(scheduler_->cell(e.sequence)).second) << "two have one cell";
      if (options_.has_states && e.start >= kBoundary) {
        EXPECT_EQ(state_of(e), r.keys[e.start / kBoundary * kBoundary - 1]) << "of " << e.start;
      }
      for (int i = e.start; i < e.start + e.rows; ++i)
        if (is_last_slot(i)) state_of(e) = i < r.known() ? r.keys[i] : r.next_key();
      crossed += (e.start + e.rows - 1) / kBoundary - e.start / kBoundary;
      for (int i = e.start; i < end; ++i)
        at(e, i) = i < r.known() ? r.keys[i] : is_ahead ? r.next_key() : Key{1};
      for (int p = e.start / slots; p <= (end - 1) / slots; ++p) {
        const int32_t block = scheduler_->blocks(e.sequence)[p];
        EXPECT_TRUE(written.insert(block).second) << "two sequences write one block";
        EXPECT_EQ(pool_->references(block), 1) << "a block that others read is written";
      }
      in_flight_chunks_ += r.in_flight > 0 && !is_ahead;
      r.planned += e.rows;
      ++r.in_flight;
    }
    if (options_.has_states) {
      EXPECT_LE(crossed, options_.max_num_batched_tokens / kBoundary + 2) << "scratch chunks";
    }
    if (plan.entries.empty()) return false;
    EXPECT_EQ(plan.number, ++number_);
    in_flight_.push_back(plan);
    EXPECT_LE(std::ssize(in_flight_), options_.max_plans_in_flight);
    EXPECT_EQ(scheduler_->plans_in_flight(), std::ssize(in_flight_));
    return true;
  }

  // First come, first served; where prompts are computed in chunks a shorter one may be admitted
  // before those that are longer, until as many blocks as the oldest needs were given away.
  void expect_its_turn(int64_t id, const Request& r) {
    int64_t oldest = id;
    for (const auto& [other, q] : live_) {
      if (q->resident || other > id) continue;
      oldest = std::min(oldest, other);
      EXPECT_FALSE(keeps_arrival(options_.policy)) << other << " was overtaken by " << id;
      EXPECT_TRUE(r.known() < q->known() || options_.policy == "longest-prefix")
          << other << " was overtaken by " << id;
    }
    if (oldest != overtaken_) overtakers_ = 0;
    overtaken_ = oldest;
    if (oldest == id) return;
    overtakers_ += pool_->blocks_for(r.known());
    ++overtakings_;
    EXPECT_LE(overtakers_, pool_->blocks_for(live_.at(oldest)->known()));
  }

  void commit() {
    const StepPlan plan = from_bytes<StepPlan>(to_bytes(in_flight_.front()), "a step plan");
    in_flight_.pop_front();
    std::vector<StepResult> results;
    std::vector<std::unique_ptr<Request>> over;  // their tokens live until the commit
    for (const StepEntry& e : plan.entries) {
      const auto it = live_.find(e.id);
      if (it == live_.end()) {  // removed meanwhile, or it ended with the token of this row
        results.push_back({.new_tokens = int32_t{e.samples}});
        ++in_vain_;
        continue;
      }
      Request& r = *it->second;
      --r.in_flight;
      StepResult result;
      const bool fails = random_() % 200 == 0;
      if (fails) {
        result.finished = true;
        for (int i = e.start; i < e.start + e.rows; ++i) at(e, i) = 2;  // nobody may find this
        state_of(e) = 2;
      } else if (e.samples) {
        result.new_tokens = 1 + random_() % (e.drafts + 1);
        result.new_tokens = std::min(result.new_tokens, r.last - r.known());
        accepted_drafts_ += result.new_tokens - 1;
        for (int i = 0; i < result.new_tokens; ++i) {
          r.push(r.foreseen >= 0 ? std::exchange(r.foreseen, -1) : random_() % 2 ? 7 : 8);
          if (i == result.new_tokens - 1) continue;  // was not computed
          at(e, r.known() - 1) = r.keys.back();
          if (is_last_slot(r.known() - 1)) state_of(e) = r.keys.back();
        }
        r.planned += result.new_tokens - 1;
        result.finished = r.known() == r.last;
      }
      if (result.finished) {
        over.push_back(std::move(it->second));
        live_.erase(it);
      }
      results.push_back(result);
    }
    scheduler_->commit(plan, results);
  }

  // Every request ends, within a bound that only progress in every step can keep.
  void finish() {
    int64_t left = 0;
    for (const auto& [id, r] : live_) left += r->last;
    const int64_t bound = 50 * left + 1000;
    for (int64_t step = 0; !live_.empty() || !in_flight_.empty(); ++step) {
      ASSERT_LT(step, bound) << live_.size() << " requests never end";
      if (!plan() && !(in_flight_.empty() && plan(false))) {
        ASSERT_FALSE(in_flight_.empty()) << live_.size() << " requests wait for nothing";
        commit();
      }
      ASSERT_EQ(scheduler_->check_integrity(), "");
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    EXPECT_EQ(pool_->free_blocks(), pool_->num_blocks());
    EXPECT_EQ(scheduler_->num_running() + scheduler_->num_waiting(), 0);
  }

  Key& at(const StepEntry& e, int slot) {
    const int slots = pool_->block_size();
    return memory_[scheduler_->blocks(e.sequence)[slot / slots] * slots + slot % slots];
  }

  static bool is_last_slot(int position) { return position % kBoundary == kBoundary - 1; }
  Key& state_of(const StepEntry& e) { return states_.at(scheduler_->cell(e.sequence)); }

  std::mt19937 random_;
  SchedulerOptions options_;
  std::optional<BlockPool> pool_;
  std::vector<Key> memory_;
  std::vector<Key> states_;  // by cell: the key of the position before the boundary
  std::optional<PrefixCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<int64_t, std::unique_ptr<Request>> live_;
  std::deque<StepPlan> in_flight_;
  int64_t next_id_ = 0, number_ = 0;
  bool may_draft_ = false;
  int64_t overtaken_ = -1;  // the oldest that waited when one was last admitted
  int overtakers_ = 0;      // blocks of those who overtook it
  int preemptions_ = 0, in_flight_chunks_ = 0, accepted_drafts_ = 0, cached_slots_ = 0,
      overtakings_ = 0, ahead_ = 0, in_vain_ = 0, state_copies_ = 0;
};

class EveryPolicy : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryPolicy, KeepsItsPromisesUnderRandomLoad) {
  int preemptions = 0, in_flight_chunks = 0, accepted_drafts = 0, cached_slots = 0, overtakings = 0,
      ahead = 0, in_vain = 0, state_copies = 0;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Simulation simulation(GetParam(), seed);
    simulation.run(300);
    ASSERT_FALSE(HasFailure());
    preemptions += simulation.preemptions();
    in_flight_chunks += simulation.in_flight_chunks();
    accepted_drafts += simulation.accepted_drafts();
    cached_slots += simulation.cached_slots();
    overtakings += simulation.overtakings();
    ahead += simulation.ahead();
    in_vain += simulation.in_vain();
    state_copies += simulation.state_copies();
  }
  // What the loads have provoked.
  const std::string& policy = GetParam();
  const bool reserves = policy == "orca" || policy == "faster-transformer";
  EXPECT_EQ(preemptions > 50, !reserves) << preemptions;
  EXPECT_EQ(in_flight_chunks > 50, !computes_whole_prompts(policy)) << in_flight_chunks;
  EXPECT_GT(accepted_drafts, 100);
  EXPECT_GT(cached_slots, 5000);
  EXPECT_GT(ahead, 1000);
  EXPECT_GT(in_vain, 50);
  EXPECT_GT(state_copies, 100);
  EXPECT_EQ(overtakings > 100, !keeps_arrival(policy)) << overtakings;
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, ::testing::ValuesIn(scheduler_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace invar
