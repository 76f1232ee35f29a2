// Iteration-level scheduling: decodes and whole new prompts share every step; a sequence reserves
// the blocks of the longest one when it is admitted. Yu et al., "Orca: A Distributed Serving System
// for Transformer-Based Generative Models" (OSDI 2022).
#pragma once

#include "scheduler/scheduler.h"

namespace invar {

class Orca final : public Scheduler {
 public:
  using Scheduler::Scheduler;

 private:
  bool reserves_whole_sequences() const override { return true; }
  void fill(StepPlan& plan, int32_t budget) override {
    int32_t left = budget;
    add_decodes(plan, left);
    add_whole_prompts(plan, left);
    add_drafts(plan, left);
  }
};

}  // namespace invar
