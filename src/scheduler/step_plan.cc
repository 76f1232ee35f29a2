#include "scheduler/step_plan.h"

#include <algorithm>

#include "base/error.h"
#include "scheduler/step_work.h"

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
  state_copies.clear();
}

namespace {

// That the rows of an entry see, themselves included.
int64_t slots_of(const StepEntry& e, int window) {
  const int64_t narrow = window > 0 ? std::clamp(window - e.start, 0, e.rows) : e.rows;
  return narrow * (2 * int64_t{e.start} + narrow + 1) / 2 + (e.rows - narrow) * window;
}

int64_t mean_slots_of(const StepEntry& e, std::span<const LayerWindow> windows) {
  int64_t slots = 0, layers = 0;
  for (const LayerWindow& w : windows) {
    slots += w.layers * slots_of(e, w.window);
    layers += w.layers;
  }
  return slots / std::max<int64_t>(1, layers);
}

}  // namespace

StepWork work_of(const StepPlan& plan, std::span<const LayerWindow> windows) {
  StepWork work;
  for (const StepEntry& e : plan.entries) {
    const bool decodes = e.rows == 1 && e.samples;
    (decodes ? work.decode_rows : work.prompt_rows) += e.rows;
    (decodes ? work.decode_slots : work.prompt_slots) += mean_slots_of(e, windows);
    work.samples += e.samples;
  }
  return work;
}

StepWork work_of(const StepPlan& plan) {
  constexpr LayerWindow kAll[] = {{}};
  return work_of(plan, kAll);
}

void expect_valid(const StepPlan& plan) {
  const auto require = [](bool condition, const char* what) {
    if (!condition) fail("a step plan is malformed: {}", what);
  };
  require(plan.number >= 0, "a negative number");
  for (const CellCopy& copy : plan.state_copies)
    require(copy.from >= 0 && copy.to >= 0, "a copy of a negative cell");
  for (const StepEntry& e : plan.entries) {
    require(e.sequence >= 0 && e.start >= 0, "a negative sequence or position");
    require(e.rows >= 1 && e.drafts >= 0, "an entry without rows");
    require(e.samples || e.drafts == 0, "drafts of a sequence that samples nothing");
  }
}

}  // namespace invar
