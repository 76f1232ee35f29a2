// invar bench divergence; see bench_divergence.cc.
#pragma once

#include "cli/command.h"

namespace invar::cli {

// The same requests over tensor-parallel sizes and batches, an arithmetic beside the other.
struct RankDivergence {
  ModelFlags model;
  std::vector<int> ranks, batches = {8, 16, 32};
  std::vector<std::string> arithmetics = {"control", "control-batch", "portable"};
  int requests = 32, tokens = 64, prompt = 100;
  SamplingParams sampling = {.temperature = 0};
  uint32_t seed = 1;
};
int run_rank_divergence(const RankDivergence& flags);

void add_bench_divergence(CLI::App& bench, Action& action);  // a subcommand of bench

}  // namespace invar::cli
