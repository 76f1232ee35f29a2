// The plan of one step as plain data: which rows of which sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/layout.h"

namespace invar {

// Tokens start .. start + rows - 1 of one sequence, and up to `drafts` draft rows after them.
struct StepEntry {
  int64_t id = 0;        // of the sequence
  int32_t sequence = 0;  // its index in the scheduler while it lives
  int32_t start = 0;     // the first position computed
  int32_t rows = 0;      // of known tokens, >= 1
  int32_t drafts = 0;    // > 0 only when `samples`
  bool samples = false;  // the last known token is among the rows: its logits give the next one

  bool operator==(const StepEntry&) const = default;
};

struct StepPlan {
  int64_t number = 0;              // plans that are not empty are numbered from 1
  std::vector<StepEntry> entries;  // at most one per sequence
  std::vector<int64_t> admitted;   // sequences that start, or start again, with this step
  std::vector<int64_t> preempted;  // sequences that lost their blocks and wait again
  // Copies of states that the prefix cache keeps or gives; done before any row is computed.
  std::vector<CellCopy> state_copies;

  int32_t rows() const;  // drafts included
  void clear();
  bool operator==(const StepPlan&) const = default;
};

// How much a plan computes, in the terms that its time depends on.
struct StepWork {
  int32_t prompt_rows = 0;
  int32_t decode_rows = 0;  // of sequences that compute one row, which samples
  int32_t samples = 0;
  int64_t prompt_slots = 0;  // that the prompt rows see, themselves included
  int64_t decode_slots = 0;

  int32_t rows() const { return prompt_rows + decode_rows; }
};
// Without the draft rows.
StepWork work_of(const StepPlan& plan);

// Checks a plan that comes as bytes (base/fields.h): throws Error for one that no scheduler makes.
void expect_valid(const StepPlan& plan);

}  // namespace invar
