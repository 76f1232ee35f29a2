// Prompts with their answers as packed rows for the trainer, and where each answer went.
#pragma once

#include <span>
#include <vector>

#include "train/packed_row.h"

namespace invar::rl {

struct PackedAnswers {
  std::vector<PackedRow> rows;  // as many as `groups` share evenly
  struct Place {
    size_t row;      // of `rows`
    int32_t first;   // position whose target is the answer's first token
    int32_t tokens;  // of the answer
    int64_t index(int context) const { return static_cast<int64_t>(row) * context + first; }
  };
  std::vector<Place> places;  // one per answer
};

// Longest first into the first row with room, a function of the lengths alone. Weights are 1 for
// the tokens of answers. REQUIRES: no prompt with its answer is longer than `context`.
PackedAnswers pack_answers(std::span<const std::vector<int32_t>* const> prompts,
                           std::span<const std::vector<int32_t>* const> answers, int context,
                           int groups, int32_t pad);

}  // namespace invar::rl
