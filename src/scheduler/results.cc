// The end of a plan: its sequences go on, wait for a late token, or leave.
#include "base/check.h"
#include "scheduler/scheduler.h"

namespace invar {

template <typename Take>
void Scheduler::end_plan(const StepPlan& plan, std::span<const StepResult> results, Take take) {
  if (plan.entries.empty()) return;
  CHECK(plan.number == last_commit_ + 1, "plans are committed in their order");
  CHECK(results.size() == plan.entries.size(), "one result for each entry");
  last_commit_ = plan.number;
  bool some_left = false;
  for (size_t i = 0; i < results.size(); ++i) {
    const StepEntry& e = plan.entries[i];
    const StepResult& r = results[i];
    Sequence& s = sequences_[e.sequence];
    CHECK(s.id == e.id && s.in_flight > 0, "a result for a sequence that was not planned");
    --s.in_flight;
    if (s.state == State::removed) {
      free_index_if_idle(s);
      continue;
    }
    CHECK(r.new_tokens <= (e.samples ? 1 + e.drafts : 0),
          "a sampling entry gives one token and at most its drafts, any other none");
    s.known += r.new_tokens;
    CHECK(s.known <= options_.max_model_len, "a sequence longer than the model allows");
    take(s, e, r);
    if (r.finished) {
      drop(s);
      some_left = true;
    }
  }
  if (some_left) forget_gone();
}

void Scheduler::commit(const StepPlan& plan, std::span<const StepResult> results) {
  end_plan(plan, results, [&](Sequence& s, const StepEntry& e, const StepResult& r) {
    CHECK(r.finished || r.is_late || r.new_tokens >= int32_t{e.samples},
          "a sampling entry without its token");
    if (r.is_late) {
      if (e.drafts > 0 && !reserves_whole_sequences()) s.table.truncate(s.planned);
      return;
    }
    if (r.new_tokens == 0) {
      if (options_.has_states && !r.finished) remember(s, e.start + e.rows);
      return;
    }
    s.planned += r.new_tokens - 1;
    if (e.drafts > 0 && !reserves_whole_sequences()) s.table.truncate(s.planned);
    // Not the slot of a row that has run ahead: what is in it may not be finite.
    if (r.finished || e.start < s.prefill_end) remember(s, s.known - 1);
  });
}

void Scheduler::settle(int64_t id, bool finished) {
  const auto found = index_of_.find(id);
  CHECK(found != index_of_.end(), "a late token of a sequence that is gone");
  Sequence& s = sequences_[found->second];
  CHECK(s.is_resident() && s.in_flight == 0 && s.is_ahead(), "a late token of a known one");
  ++s.known;
  if (finished || s.known - 1 == s.prefill_end) remember(s, s.known - 1);
  if (!finished) return;
  drop(s);
  forget_gone();
}

void Scheduler::discard(const StepPlan& plan, std::span<const StepResult> results) {
  end_plan(plan, results, [](Sequence&, const StepEntry&, const StepResult&) {});
}

}  // namespace invar
