// invar audit --trainer: the whole distribution of sampler and trainer, position by position.
#pragma once

#include "cli/command.h"

namespace invar::cli {

struct TrainerAuditFlags {
  bool is_on = false;
  // Other trainers: "transformers" (or "transformers:bfloat16"), a Python function by its file and
  // name, or a directory of logits.
  std::vector<std::string> against;
  int texts = 8, tokens = 48;  // answers, and tokens of each
};

// Prints a line for each trainer. The status is 0 where Invar's own agrees at every position.
int audit_trainer(const ModelOptions& model, const TrainerAuditFlags& flags, bool json);

}  // namespace invar::cli
