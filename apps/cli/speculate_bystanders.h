// What others' drafts cost a sequence that has none: invar bench speculate --bystanders.
#pragma once

#include "speculate_arm.h"

namespace invar::cli {

// `bystanders` sequences that nobody drafts for beside `speculating` ones, for each method and once
// with drafts for nobody.
struct BystanderSpec {
  int bystanders = 1, speculating = 1;
  int tokens = 96;  // of each bystander's answer
  int rounds = 3;
  std::vector<std::string> configs;
};

// Prints, for each method, the median and P99 of the time between a bystander's tokens, and P99
// over that of plain decoding: the median of the rounds, each way in turn. Steps that compute a
// prompt are left out. Fails if an answer changes. Returns the exit status.
int print_bystanders(Model& model, std::span<const std::vector<int32_t>> prompts,
                     const BystanderSpec& spec);

}  // namespace invar::cli
