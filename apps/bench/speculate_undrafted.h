// The cost of others' drafts to a sequence that has none: invar bench speculate --undrafted.
#pragma once

#include "speculate_arm.h"

namespace invar::cli {

// `undrafted` sequences that nobody drafts for beside `speculating` ones, for each method and once
// with drafts for nobody.
struct UndraftedSpec {
  int undrafted = 1, speculating = 1;
  int tokens = 96;  // of each of their answers
  int rounds = 3;
  std::vector<std::string> configs;
};

// Prints, for each method, the median and P99 of the time between tokens of one without drafts, and
// P99 over that of plain decoding: the median of the rounds, each way in turn. Steps that compute a
// prompt are left out. Fails if an answer changes. Returns the exit status.
int print_undrafted(const std::shared_ptr<Model>& model,
                    std::span<const std::vector<int32_t>> prompts, const UndraftedSpec& spec);

}  // namespace invar::cli
