// Request-level scheduling: a group of requests is admitted together and nobody else before all of
// it is over; a sequence reserves the blocks of the longest one. As FasterTransformer serves.
#pragma once

#include "scheduler/scheduler.h"

namespace invar {

class FasterTransformer final : public Scheduler {
 public:
  using Scheduler::Scheduler;

 private:
  bool reserves_whole_sequences() const override { return true; }
  void fill(StepPlan& plan, int32_t budget) override {
    int32_t left = budget;
    if (num_running() == 0) {
      add_whole_prompts(plan, left);
    } else {
      add_decodes(plan, left);
      add_drafts(plan, left);
    }
  }
};

}  // namespace invar
