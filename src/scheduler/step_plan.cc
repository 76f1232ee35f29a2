#include "scheduler/step_plan.h"

#include "base/bytes.h"

namespace invar {

namespace {

constexpr uint64_t kPlanMagic = 0x31304e4c50564e49;  // "INVPLN01"
constexpr size_t kEntryBytes = 8 + 5 * 4;

void require(bool condition, const char* what) {
  if (!condition) fail("a step plan is malformed: {}", what);
}

StepEntry read_entry(ByteReader& in) {
  StepEntry e;
  e.id = in.get<int64_t>();
  e.sequence = in.get<int32_t>();
  e.start = in.get<int32_t>();
  e.rows = in.get<int32_t>();
  e.drafts = in.get<int32_t>();
  const int32_t samples = in.get<int32_t>();
  require(e.sequence >= 0 && e.start >= 0, "a negative sequence or position");
  require(e.rows >= 1 && e.drafts >= 0, "an entry without rows");
  require(samples == 0 || samples == 1, "a flag that is neither 0 nor 1");
  require(samples == 1 || e.drafts == 0, "drafts of a sequence that samples nothing");
  e.samples = samples == 1;
  return e;
}

}  // namespace

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

std::string to_bytes(const StepPlan& plan) {
  ByteWriter out;
  out.put(kPlanMagic);
  out.put(plan.number);
  out.put(static_cast<uint64_t>(plan.entries.size()));
  for (const StepEntry& e : plan.entries) {
    out.put(e.id);
    for (const int32_t field : {e.sequence, e.start, e.rows, e.drafts, int32_t{e.samples}})
      out.put(field);
  }
  out.put_vector(plan.admitted);
  out.put_vector(plan.preempted);
  return out.take();
}

StepPlan step_plan_from_bytes(std::string_view bytes) {
  ByteReader in(bytes, "a step plan");
  require(in.get<uint64_t>() == kPlanMagic, "it does not begin with INVPLN01");
  StepPlan plan;
  plan.number = in.get<int64_t>();
  require(plan.number >= 0, "a negative number");
  plan.entries.resize(in.get_count(kEntryBytes));
  for (StepEntry& e : plan.entries) e = read_entry(in);
  plan.admitted = in.get_vector<int64_t>();
  plan.preempted = in.get_vector<int64_t>();
  in.expect_end();
  return plan;
}

}  // namespace invar
