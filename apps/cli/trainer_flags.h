// Flags of invar serve that RL stacks start an engine with.
#pragma once

#include "serve_flags.h"

namespace invar::cli {

void add_trainer_flags(CLI::App& command, ServeFlags& flags);

}  // namespace invar::cli
