// The sequence with the most tokens in the prefix cache is admitted first, while these are still
// there; among those with equally many the queue's order decides. No sequence is overtaken for ever
// (or_the_oldest). Zheng et al., "SGLang: Efficient Execution of Structured Language Model
// Programs" (NeurIPS 2024).
#pragma once

#include <algorithm>

#include "scheduler/scheduler.h"

namespace invar {

class LongestPrefix final : public Scheduler {
 public:
  using Scheduler::Scheduler;

 private:
  static constexpr size_t kLookedAt = 128;  // of a longer queue the first so many

  void fill(StepPlan& plan, int32_t budget) override {
    rank_queue();
    int32_t left = budget;
    add_decodes(plan, left);
    add_chunks_in_order(plan, budget, left);
    add_drafts(plan, left);
  }

  void rank_queue() {
    first_waiting(kLookedAt, order_);
    cached_.clear();
    for (const int32_t index : order_) cached_.emplace_back(-cached_tokens(index), index);
    std::ranges::stable_sort(cached_, {}, &std::pair<int32_t, int32_t>::first);
    next_ = 0;
  }

  int32_t next_waiting() override {
    while (next_ < cached_.size() && !is_waiting(cached_[next_].second)) ++next_;
    return or_the_oldest(next_ < cached_.size() ? cached_[next_].second : -1);
  }

  std::vector<int32_t> order_;
  std::vector<std::pair<int32_t, int32_t>> cached_;  // tokens, negative; a sequence
  size_t next_ = 0;
};

}  // namespace invar
