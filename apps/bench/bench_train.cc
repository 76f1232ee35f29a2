// invar bench train: the speed of a recipe's steps beside the machine's products, measured in the
// same run.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cli/command.h"
#include "cli/number_flags.h"
#include "device/device.h"
#include "kernels/peaks.h"
#include "kernels/select.h"
#include "median.h"
#include "numerics/philox.h"
#include "train/recipe.h"

namespace invar::cli {

namespace {

struct BenchTrainFlags {
  std::string recipe;
  int threads = 0, steps = 5, ranks = 1;
  std::string device = "cpu", instruction_set = "auto";
  bool profile = false, json = false;
};

// Multiplications and additions of a step: a forward of whole rows with all logits, and twice that
// for the backward. Operations that a kernel does again do not count.
double step_operations(const TrainerOptions& t) {
  const DecoderSpec& s = t.model.spec;
  const double n = t.context;
  const double products = double(s.hidden) * (s.query_width() + 2.0 * s.kv_width()) +
                          double(s.query_width()) * s.hidden +
                          3.0 * s.hidden * s.layer(0).ffn_width();
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
  const double ffn = s.layer(0).ffn_width();
  // The product itself, its gradients ("... dX", "... dW"), or it computed again.
  const auto is = [&](std::string_view part) {
    return name.starts_with(part) && (name.size() == part.size() || name[part.size()] == ' ');
  };
  if (is("qkv")) return 2 * s.layers * rows * s.hidden * (query + 2.0 * s.kv_width());
  if (is("o")) return 2 * s.layers * rows * s.hidden * query;
  if (is("gated")) return 2 * s.layers * rows * s.hidden * 2.0 * ffn;
  if (is("down")) return 2 * s.layers * rows * s.hidden * ffn;
  if (is("logits") || is("head")) return 2 * rows * s.hidden * s.vocab;
  const double attention = 2 * s.layers * rows * query * (t.context + 1);
  return name == "attention" ? attention : name == "attention backward" ? 2.5 * attention : 0;
}

// Bytes that an operation other than a product must read and write in a step, each array once; 0
// for what is not counted.
double bytes_of(std::string_view name, const TrainerOptions& t, double parameters) {
  const DecoderSpec& s = t.model.spec;
  const double rows = double(t.rows) * t.context, layers = s.layers, norms = 2 * layers + 1;
  const double d = rows * s.hidden, f = rows * s.layer(0).ffn_width(), q = rows * s.query_width();
  const double qkv = q + 2 * rows * s.kv_width(), v = rows * s.vocab;
  const double normed = s.qk_norm ? q + rows * s.kv_width() : 0;  // queries and keys
  const double table = double(s.vocab) * s.hidden;
  const std::pair<std::string_view, double> all[] = {
      {"clear gradients", 4 * table},
      {"embed", 6 * d},
      {"keep", 8 * d * norms},
      {"norm", 6 * d * norms},
      {"rope", 6 * qkv * layers},
      {"log-sum-exp", 4 * v},
      {"loss gradient", 6 * v},
      {"pack inputs", 4 * ((2 * d + f + q) * layers + d)},
      {"transpose", 4 * ((2 * d + 2 * f + qkv) * layers + v)},
      {"norm backward", 16 * d * norms},
      {"norm gradient", 8 * (d * norms + normed * layers)},
      {"round", 6 * (2 * d + q) * layers},
      {"gate backward", 16 * f * layers},
      {"rotation backward", (6 * qkv + 8 * normed) * layers},
      {"embed gradient", 12 * d},
      {"add gradients", 12 * table},
      {"gradient norm", 4 * parameters},
      {"optimizer", 30 * parameters},
      {"pack weights", 4 * parameters},
      {"pack transposed", 4 * parameters}};
  for (const auto& [operation, bytes] : all)
    if (operation == name) return bytes;
  return 0;
}

// The peaks of the machine, per second.
struct TrainLimits {
  double products, bytes;
};

void print_profile(const TrainerOptions& options, const OperationTimes& times, double seconds,
                   double parameters, const TrainLimits& limits) {
  double rest = seconds;
  double products = 0, in_products = 0, in_attention = 0, bytes_in_all = 0, in_passes = 0;
  const auto print = [&](std::string_view name, double own, const std::string& share) {
    fmt::print("    {:20} {:8.1f} ms  {:5.1f} %{}\n", name, 1e3 * own, 100 * own / seconds, share);
  };
  const auto share = [](double part, double limit, const char* of) {
    return part > 0 ? fmt::format("  {:5.1f} % of the {}", 100 * part / limit, of) : std::string();
  };
  for (const OperationTimes::Entry& entry : times.entries()) {
    const double operations = operations_of(entry.name, options);
    const double bytes = bytes_of(entry.name, options, parameters);
    rest -= entry.seconds;
    if (entry.name.starts_with("attention"))
      in_attention += entry.seconds;
    else if (operations > 0)
      products += operations, in_products += entry.seconds;
    else
      bytes_in_all += bytes, in_passes += entry.seconds;
    print(entry.name, entry.seconds,
          share(operations, entry.seconds * limits.products, "product peak") +
              share(bytes, entry.seconds * limits.bytes, "read bandwidth"));
  }
  print("the rest", rest, "");
  fmt::print(
      "  products {:.0f} ms, {:.1f} % of the product peak; attention {:.0f} ms; passes over memory "
      "{:.0f} ms, at the read bandwidth {:.0f}\n",
      1e3 * in_products, 100 * products / (in_products * limits.products), 1e3 * in_attention,
      1e3 * in_passes, 1e3 * bytes_in_all / limits.bytes);
}

// The bandwidth of memory that no cache holds.
double read_bandwidth(ThreadPool& pool) {
  const std::unique_ptr<Device> device = make_host_device();
  const DeviceArray<std::byte> memory(*device, size_t{512} << 20, "a measurement");
  std::memset(memory.data(), 1, memory.size());
  return measure_read_bandwidth(pool, std::span<const std::byte>(memory.data(), memory.size()));
}

void set_schedule(const BenchTrainFlags& flags, const ThreadPool& pool, TrainerOptions& options) {
  options.ranks = flags.ranks;
  options.threads = std::max(1, pool.size() / flags.ranks);
  options.device = flags.device;
  options.instruction_set = flags.instruction_set;
}

Recipe read_model_recipe(const std::string& path) {
  Recipe recipe = read_recipe(path);
  if (recipe.trainer.lora.is_on())
    fail_usage("{}: expected a recipe of a model to measure, found one of an adapter", path);
  return recipe;
}

int run_bench_train(const BenchTrainFlags& flags) {
  for (const auto& [count, what] : {std::pair(flags.steps, "steps"), {flags.ranks, "ranks"}})
    if (count < 1) fail_usage("expected 1 or more {}, found {}", what, count);
  Recipe recipe = read_model_recipe(flags.recipe);
  TrainerOptions& options = recipe.trainer;
  ThreadPool pool(flags.threads);
  set_schedule(flags, pool, options);
  const std::string set = select_kernels(Order::portable, flags.instruction_set).name;
  const std::string on =
      flags.device == "cpu" ? fmt::format("{} threads, {}", pool.size(), set) : flags.device;
  Trainer trainer(options, recipe.seed);
  const std::vector<PackedRow> rows = made_rows(options);
  trainer.step(rows);  // warm: every page of memory touched
  std::vector<double> seconds, peaks;
  OperationTimes times;  // of the quickest step
  ProgressLine progress(!flags.json);
  for (int i = 0; i < flags.steps; ++i) {
    progress.show_share("bench", i, flags.steps, "steps");
    peaks.push_back(measure_product_peak(pool, set == "scalar" ? "avx2" : set));
    OperationTimes own;
    const double one = trainer.step(rows, 0, &own).seconds;
    if (seconds.empty() || one < *std::min_element(seconds.begin(), seconds.end())) times = own;
    seconds.push_back(one);
  }
  progress.clear();
  const double step = median(seconds), peak = median(peaks);
  const double speed = step_operations(options) / step;
  const double tokens = static_cast<double>(options.rows) * options.context / step;
  json::Value report = json::Object{{"recipe", recipe.name},
                                    {"parameters", trainer.layout().size()},
                                    {"rows", options.rows},
                                    {"context", options.context},
                                    {"threads", pool.size()},
                                    {"ranks", flags.ranks},
                                    {"device", flags.device},
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
        "{}: {:.1f} M parameters, {} x {}, {}; median of {} steps\n"
        "  {:.3f} s a step, {:.0f} tok/s\n"
        "  {:.0f} GFLOP/s, {:.1f} % of this CPU's product peak {:.0f}\n",
        recipe.name, static_cast<double>(trainer.layout().size()) / 1e6, options.rows,
        options.context, on, flags.steps, step, tokens, speed / 1e9, 100 * speed / peak,
        peak / 1e9);
  if (flags.profile) {
    const double best = *std::min_element(seconds.begin(), seconds.end());
    const TrainLimits limits{.products = peak, .bytes = read_bandwidth(pool)};
    fmt::print("  the quickest step, {:.3f} s; read bandwidth {:.1f} GB/s\n", best,
               limits.bytes / 1e9);
    print_profile(options, times, best, static_cast<double>(trainer.layout().size()), limits);
  }
  return 0;
}

}  // namespace

void add_bench_train(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "train", "Measure training steps of a recipe, such as recipes/speed.toml, on generated rows");
  auto flags = std::make_shared<BenchTrainFlags>();
  command->add_option("RECIPE", flags->recipe, "A recipe (TOML); its teacher is not used")
      ->required();
  command->add_option("--steps", flags->steps, "Steps to measure; the medians are shown")
      ->capture_default_str();
  command
      ->add_option("--ranks", flags->ranks,
                   "Data-parallel ranks, at most the recipe's groups; threads are divided")
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "Threads; 0 means one per core")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--device", flags->device, "cpu, or the GPU cuda or cuda:N")
      ->capture_default_str();
  command
      ->add_option("--instruction-set", flags->instruction_set,
                   "Instruction set, as for invar train")
      ->capture_default_str();
  command->add_flag("--profile", flags->profile,
                    "Show the time of each operation and its share of the machine's limit");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([&action, flags] { action = [flags] { return run_bench_train(*flags); }; });
}

}  // namespace invar::cli
