// vLLM's policy of that name: a smaller `priority` is sooner, in the queue and among the residents.
// When blocks run out, the resident of the largest one gives its own back. Steps are filled as
// sarathi fills them.
#pragma once

#include "scheduler/scheduler.h"

namespace invar {

class Priority final : public Scheduler {
 public:
  using Scheduler::Scheduler;

 private:
  int64_t resident_rank(const Sequence& s) const override { return s.priority; }
  void fill(StepPlan& plan, int32_t budget) override {
    int32_t left = budget;
    add_decodes(plan, left);
    add_chunks(plan, budget, left);
    add_drafts(plan, left);
  }
};

}  // namespace invar
