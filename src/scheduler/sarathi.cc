// Stall-free scheduling: the decode rows of all resident sequences first, then chunks of partial
// prompts, then new prompts, within one budget of rows. No decode ever waits for a prompt, and the
// budget bounds the time of a step. Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM
// Inference with Sarathi-Serve" (OSDI 2024).
#include <algorithm>

#include "scheduler/policies.h"

namespace invar {

namespace {

class Sarathi : public Scheduler {
 public:
  Sarathi(const SchedulerOptions& options, PagePool& pool) : Scheduler(options, pool) {}

 private:
  void fill(StepPlan& plan, int32_t budget) override {
    int32_t left = budget;
    bool prompts_served = true;
    partial_.clear();
    for (size_t i = 0; i < running_size() && left > 0; ++i) {
      Sequence& s = running(i);
      if (!s.is_resident() || s.next_is_unknown()) continue;
      if (s.in_prefill()) {
        partial_.push_back(i);
      } else if (make_room(plan, i)) {
        emit(plan, s, 1);
        --left;
      }
    }
    for (const size_t i : partial_) {
      Sequence& s = running(i);
      if (!s.is_resident()) continue;  // preempted by an older one
      const int32_t wanted = chunk(s, budget, left);
      int32_t rows = rows_with_pages(s, wanted);
      // The oldest sequence does not wait for the pages of younger ones.
      if (rows == 0 && wanted > 0 && i == 0 && make_room(plan, i)) rows = 1;
      if (rows > 0) emit(plan, s, rows);
      left -= rows;
      prompts_served &= rows > 0;
    }
    // A prompt never overtakes one that got nothing, and pages that were just taken from a
    // sequence are not given to another.
    while (left > 0 && prompts_served && plan.preempted.empty() && may_admit()) {
      Sequence& s = admit(plan);
      const int32_t rows = chunk(s, budget, left);
      if (rows > 0) emit(plan, s, rows);
      left -= rows;
      prompts_served = rows > 0;
    }
    add_drafts(plan, left);
  }

  // Rows of the next chunk of a prompt. A chunk size of the schedule counts all rows of the step.
  int32_t chunk(const Sequence& s, int32_t budget, int32_t left) const {
    int32_t rows = std::min(s.prefill_end - s.planned, left);
    if (const auto& schedule = options_.chunk_schedule)
      rows = std::min(rows, scheduled_chunk(*schedule, s.planned) - (budget - left));
    return std::max(rows, 0);
  }

  std::vector<size_t> partial_;  // indices of resident sequences in prefill
};

}  // namespace

std::unique_ptr<Scheduler> make_sarathi(const SchedulerOptions& options, PagePool& pool) {
  return std::make_unique<Sarathi>(options, pool);
}

}  // namespace invar
