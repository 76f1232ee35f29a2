// Chunked prompts without mixing: a step of prompt chunks and a step of decodes take turns, so a
// decode waits for one chunk at most.
#pragma once

#include "scheduler/scheduler.h"

namespace invar {

class SimpleChunking final : public Scheduler {
 public:
  using Scheduler::Scheduler;

 private:
  void fill(StepPlan& plan, int32_t budget) override {
    // A kind of rows that has nothing to do gives its turn to the other.
    for (int turn = 0; turn < 2 && plan.entries.empty(); ++turn) {
      int32_t left = budget;
      if (prompts_turn_) {
        add_chunks(plan, budget, left);
      } else {
        add_decodes(plan, left);
        add_drafts(plan, left);
      }
      prompts_turn_ = !prompts_turn_;
    }
  }

  bool prompts_turn_ = true;
};

}  // namespace invar
