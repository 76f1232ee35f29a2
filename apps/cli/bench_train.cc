// invar bench train: the speed of a recipe's steps beside the machine's products, measured in the
// same run.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "command.h"
#include "kernels/limits.h"
#include "kernels/select.h"
#include "numerics/philox.h"
#include "train/recipe.h"

namespace invar::cli {

namespace {

struct BenchTrainFlags {
  std::string recipe;
  int threads = 0, steps = 5;
  std::string instruction_set = "auto";
  bool profile = false, json = false;
};

// Multiplications and additions of a step: a forward of whole rows with all logits, and twice that
// for the backward. What a kernel computes again does not count.
double step_operations(const TrainerOptions& t) {
  const DecoderSpec& s = t.model.spec;
  const double n = t.context;
  const double products = double(s.hidden) * (s.query_width() + 2.0 * s.kv_width()) +
                          double(s.query_width()) * s.hidden + 3.0 * s.hidden * s.ffn;
  const double attention = 2.0 * s.query_width() * n * (n + 1) / 2;
  const double heads = double(1 + t.exits.size()) * s.hidden * s.vocab;
  return t.rows * 3 * 2 * (s.layers * (products * n + attention) + heads * n);
}

// Rows of one sequence each; what the tokens are does not matter.
std::vector<PackedRow> made_rows(const TrainerOptions& t) {
  std::vector<PackedRow> rows(static_cast<size_t>(t.rows));
  for (uint32_t r = 0; r < rows.size(); ++r) {
    PackedRow& row = rows[r];
    row.begins = {0};
    row.weights.assign(static_cast<size_t>(t.context), 1.0f);
    for (uint32_t i = 0; i <= static_cast<uint32_t>(t.context); ++i)
      row.tokens.push_back(static_cast<int32_t>(philox4x32({i, r, 0, 0}, 1)[0] %
                                                static_cast<uint32_t>(t.model.spec.vocab)));
    row.targets.assign(row.tokens.begin() + 1, row.tokens.end());
    row.tokens.pop_back();
  }
  return rows;
}

// Multiplications and additions of an operation in a step; 0 for what is no matrix product.
double operations_of(std::string_view name, const TrainerOptions& t) {
  const DecoderSpec& s = t.model.spec;
  const double rows = double(t.rows) * t.context, query = s.query_width();
  // The product itself, its gradients ("... dX", "... dW"), or it computed again.
  const auto is = [&](std::string_view part) {
    return name.starts_with(part) && (name.size() == part.size() || name[part.size()] == ' ');
  };
  if (is("qkv")) return 2 * s.layers * rows * s.hidden * (query + 2.0 * s.kv_width());
  if (is("o")) return 2 * s.layers * rows * s.hidden * query;
  if (is("gated")) return 2 * s.layers * rows * s.hidden * 2.0 * s.ffn;
  if (is("down")) return 2 * s.layers * rows * s.hidden * s.ffn;
  if (is("logits") || is("head")) return 2 * rows * s.hidden * s.vocab;
  const double attention = 2 * s.layers * rows * query * (t.context + 1);
  return name == "attention" ? attention : name == "attention backward" ? 2.5 * attention : 0;
}

void print_profile(const TrainerOptions& options, const OperationTimes& times, double seconds,
                   double peak) {
  double rest = seconds;
  const auto print = [&](std::string_view name, double own, const std::string& share) {
    fmt::print("    {:20} {:8.1f} ms  {:5.1f} %{}\n", name, 1e3 * own, 100 * own / seconds, share);
  };
  for (const OperationTimes::Entry& entry : times.entries()) {
    const double operations = operations_of(entry.name, options);
    rest -= entry.seconds;
    print(entry.name, entry.seconds,
          operations > 0 ? fmt::format("  {:5.1f} % of the product peak",
                                       100 * operations / (entry.seconds * peak))
                         : "");
  }
  print("the rest", rest, "");
}

int run_bench_train(const BenchTrainFlags& flags) {
  if (flags.steps < 1) fail_usage("expected 1 or more steps, found {}", flags.steps);
  Recipe recipe = read_recipe(flags.recipe);
  TrainerOptions& options = recipe.trainer;
  options.threads = flags.threads;
  options.instruction_set = flags.instruction_set;
  ThreadPool pool(flags.threads);
  const std::string set = select_kernels(Order::portable, flags.instruction_set).name;
  Trainer trainer(options, recipe.seed);
  const std::vector<PackedRow> rows = made_rows(options);
  trainer.step(rows);  // warm: every page of memory touched
  std::vector<double> seconds, peaks;
  OperationTimes times;  // of the quickest step
  for (int i = 0; i < flags.steps; ++i) {
    peaks.push_back(measure_product_peak(pool, set == "scalar" ? "avx2" : set));
    OperationTimes own;
    const double one = trainer.step(rows, 0, &own).seconds;
    if (seconds.empty() || one < *std::min_element(seconds.begin(), seconds.end())) times = own;
    seconds.push_back(one);
  }
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  const double step = median(seconds), peak = median(peaks);
  const double speed = step_operations(options) / step;
  const double tokens = static_cast<double>(options.rows) * options.context / step;
  json::Value report = json::Object{{"recipe", recipe.name},
                                    {"parameters", trainer.layout().size()},
                                    {"rows", options.rows},
                                    {"context", options.context},
                                    {"threads", pool.size()},
                                    {"instruction_set", set},
                                    {"step_seconds", step},
                                    {"tokens_per_second", tokens},
                                    {"gflop_per_second", speed / 1e9},
                                    {"product_peak_gflop_per_second", peak / 1e9},
                                    {"share_of_peak", speed / peak}};
  if (flags.json)
    fmt::print("{}\n", json::dump(report, 2));
  else
    fmt::print(
        "{}: {:.1f} M parameters, {} x {}, {} threads, {}; median of {} steps\n"
        "  {:.3f} s a step, {:.0f} tok/s\n"
        "  {:.0f} GFLOP/s, {:.1f} % of the product peak {:.0f}\n",
        recipe.name, static_cast<double>(trainer.layout().size()) / 1e6, options.rows,
        options.context, pool.size(), set, flags.steps, step, tokens, speed / 1e9,
        100 * speed / peak, peak / 1e9);
  if (flags.profile) {
    const double best = *std::min_element(seconds.begin(), seconds.end());
    fmt::print("  the quickest step, {:.3f} s\n", best);
    print_profile(options, times, best, peak);
  }
  return 0;
}

}  // namespace

void add_bench_train(CLI::App& bench, Action& action) {
  CLI::App* command =
      bench.add_subcommand("train", "Steps of a recipe, such as recipes/speed.toml, on made rows");
  auto flags = std::make_shared<BenchTrainFlags>();
  command->add_option("RECIPE", flags->recipe, "A recipe; its teacher is left out")->required();
  command->add_option("--steps", flags->steps, "Steps that are measured; medians are shown")
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "0: one per core")->capture_default_str();
  command->add_option("--instruction-set", flags->instruction_set, "As of invar train")
      ->capture_default_str();
  command->add_flag("--profile", flags->profile,
                    "Show the time of each operation, and of products the share of the peak");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([&action, flags] { action = [flags] { return run_bench_train(*flags); }; });
}

}  // namespace invar::cli
