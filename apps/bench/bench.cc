// invar bench: what it measures, a file each.
#include "bench_divergence.h"
#include "cli/command.h"

namespace invar::cli {

void add_bench(CLI::App& app, Action& action) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure speeds and compare them with the machine's limits");
  bench->require_subcommand(1);
  add_bench_serve(*bench, action);
  add_bench_text(*bench, action);
  add_bench_schedule(*bench, action);
  add_bench_speculate(*bench, action);
  add_bench_load(*bench, action);
  add_bench_train(*bench, action);
  add_bench_model(*bench, action);
  add_bench_adapters(*bench, action);
  add_bench_divergence(*bench, action);
}

}  // namespace invar::cli
