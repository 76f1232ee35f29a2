// The host's part of a step of many drafts: invar bench speculate --host-time.
#pragma once

#include "engine/engine.h"

namespace invar::cli {

// Prints, for chains and trees of 8 nodes of 64 sequences, how long a step takes beside the
// operations of the model and the sampling of its logits: drafting from memory, checking trees,
// placing rows, walking down, keeping, committing. Returns the exit status.
int print_host_time(const std::shared_ptr<Model>& model);

}  // namespace invar::cli
