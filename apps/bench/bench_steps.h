// invar bench model --ragged, --contexts, --mixed and --shared: times of single steps.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace invar::cli {

struct StepFlags {
  bool ragged = false;
  std::vector<int> contexts;  // of a batch that decodes, tokens
  std::vector<int> mixed;     // rows of a prompt, sequences that decode, tokens before all of them
  std::vector<int> shared;    // sequences that decode, tokens of their prefix, tokens behind it
  int mean = 2048;            // tokens of a ragged batch's sequence

  bool wanted() const { return ragged || !contexts.empty() || !mixed.empty() || !shared.empty(); }
};

int run_step_bench(const StepFlags& flags, const ModelOptions& options,
                   const std::vector<int>& batches, int rounds);

}  // namespace invar::cli
