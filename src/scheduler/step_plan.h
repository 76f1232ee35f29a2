// What one step computes, as plain data: which rows of which sequences.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace invar {

// Tokens start .. start + rows - 1 of one sequence, and up to `drafts` draft rows after them.
struct StepEntry {
  int64_t id = 0;      // of the sequence
  int32_t slot = 0;    // its index in the scheduler while it lives
  int32_t start = 0;   // the first place computed
  int32_t rows = 0;    // of known tokens, >= 1
  int32_t drafts = 0;  // > 0 only when `draws`
  bool draws = false;  // the last known token is among the rows: its logits give the next one

  bool operator==(const StepEntry&) const = default;
};

struct StepPlan {
  int64_t number = 0;              // plans that are not empty are numbered from 1
  std::vector<StepEntry> entries;  // at most one per sequence
  std::vector<int64_t> admitted;   // sequences that start, or start again, with this step
  std::vector<int64_t> preempted;  // sequences that lost their pages and wait again

  int32_t rows() const;  // drafts included
  void clear();
  bool operator==(const StepPlan&) const = default;
};

// Through bytes and back. step_plan_from_bytes throws Error on anything malformed.
std::string to_bytes(const StepPlan& plan);
StepPlan step_plan_from_bytes(std::string_view bytes);

}  // namespace invar
