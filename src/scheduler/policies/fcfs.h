// First come, first served, as vLLM's policy of that name: decode rows first, then chunks of
// prompts strictly in the order of arrival. Priorities are not read.
#pragma once

#include "scheduler/scheduler.h"

namespace invar {

class Fcfs final : public Scheduler {
 public:
  using Scheduler::Scheduler;

 private:
  int64_t queue_rank(const Sequence&) const override { return 0; }
  bool has_shares() const override { return false; }
  void fill(StepPlan& plan, int32_t budget) override {
    int32_t left = budget;
    add_decodes(plan, left);
    add_chunks_in_order(plan, budget, left);
    add_drafts(plan, left);
  }
};

}  // namespace invar
