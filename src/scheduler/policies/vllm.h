// Prompts first: while new ones can be admitted, steps consist of whole prompts, and decodes wait.
// As vLLM did before chunked prefill; Kwon et al., "Efficient Memory Management for Large Language
// Model Serving with PagedAttention" (SOSP 2023).
#pragma once

#include "scheduler/scheduler.h"

namespace invar {

class Vllm final : public Scheduler {
 public:
  using Scheduler::Scheduler;

 private:
  void fill(StepPlan& plan, int32_t budget) override {
    int32_t left = budget;
    add_whole_prompts(plan, left);
    if (!plan.entries.empty()) return;
    add_decodes(plan, left);
    add_drafts(plan, left);
  }
};

}  // namespace invar
