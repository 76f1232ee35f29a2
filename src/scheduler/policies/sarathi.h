// Stall-free scheduling: the decode rows of all resident sequences first, then chunks of prompts,
// within one budget of rows. No decode ever waits for a prompt, and the budget bounds the time of a
// step. Old and short prompts share what is left (add_chunks), where the paper serves the oldest
// alone. Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM
// Inference with Sarathi-Serve" (OSDI 2024).
#pragma once

#include "scheduler/scheduler.h"

namespace invar {

class Sarathi final : public Scheduler {
 public:
  using Scheduler::Scheduler;

 private:
  void fill(StepPlan& plan, int32_t budget) override {
    int32_t left = budget;
    add_decodes(plan, left);
    add_chunks(plan, budget, left);
    add_drafts(plan, left);
  }
};

}  // namespace invar
