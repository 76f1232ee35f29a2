#include "scheduler/step_plan.h"

#include "base/error.h"

namespace invar {

int32_t StepPlan::rows() const {
  int32_t sum = 0;
  for (const StepEntry& e : entries) sum += e.rows + e.drafts;
  return sum;
}

void StepPlan::clear() {
  number = 0;
  entries.clear();
  admitted.clear();
  preempted.clear();
}

StepWork work_of(const StepPlan& plan) {
  StepWork work;
  for (const StepEntry& e : plan.entries) {
    const bool decodes = e.rows == 1 && e.samples;
    (decodes ? work.decode_rows : work.prompt_rows) += e.rows;
    (decodes ? work.decode_slots : work.prompt_slots) +=
        int64_t{e.rows} * (2 * int64_t{e.start} + e.rows + 1) / 2;
    work.samples += e.samples;
  }
  return work;
}

void expect_valid(const StepPlan& plan) {
  const auto require = [](bool condition, const char* what) {
    if (!condition) fail("a step plan is malformed: {}", what);
  };
  require(plan.number >= 0, "a negative number");
  for (const StepEntry& e : plan.entries) {
    require(e.sequence >= 0 && e.start >= 0, "a negative sequence or position");
    require(e.rows >= 1 && e.drafts >= 0, "an entry without rows");
    require(e.samples || e.drafts == 0, "drafts of a sequence that samples nothing");
  }
}

}  // namespace invar
