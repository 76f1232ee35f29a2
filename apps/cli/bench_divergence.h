// invar bench divergence; see bench_divergence.cc.
#pragma once

#include "command.h"

namespace invar::cli {

void add_bench_divergence(CLI::App& bench, Action& action);  // a subcommand of bench

}  // namespace invar::cli
