// invar bench model: the speeds of a model beside the limits of the machine, measured in the same
// run.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/timer.h"
#include "bench_model.h"
#include "cli/help_format.h"
#include "cli/switch_flag.h"
#include "kernels/peaks.h"
#include "median.h"

namespace invar::cli {

namespace {

// One figure with what bounds it.
struct Row {
  std::string what, unit;
  double value = 0, limit = 0;  // the limit in the same unit; 0 when there is none
};

// The set whose units do most of the products of a table.
std::string peak_set(std::string_view set) {
  return std::string(set == "scalar" ? "avx2" : set);
}

// Further measurements on a GPU: batches that decode behind 1024 tokens, and a long prompt.
struct LongContext {
  static constexpr int kContext = 1024, kAnswer = 96, kPrompt = 8192;
  static constexpr int kBatches[] = {1, 32, 64};
  std::map<int, std::vector<double>> decode, idle;  // idle: percent
  std::vector<double> prefill;

  void measure(const std::shared_ptr<Model>& model, std::optional<bool> async) {
    for (const int batch : kBatches) {
      if (kContext + kAnswer > model->spec().max_positions) continue;
      const Seconds seconds = run_requests(model, batch, kContext, kAnswer, 8192, async);
      decode[batch].push_back(batch * seconds.decode_steps / seconds.decode);
      idle[batch].push_back(100 * seconds.idle / seconds.decode);
    }
    if (kPrompt < model->spec().max_positions)
      prefill.push_back(kPrompt / run_requests(model, 1, kPrompt, 1, kPrompt, async).total);
  }

  void add_to(std::vector<Row>& rows) const {
    for (const auto& [batch, rates] : decode) {
      const std::string what = fmt::format("context {}, batch {}", kContext, batch);
      rows.push_back({what, "tok/s", median(rates), 0});
      rows.push_back({what + ", device idle", "%", median(idle.at(batch)), 0});
    }
    if (!prefill.empty())
      rows.push_back({fmt::format("prefill {}", kPrompt), "tok/s", median(prefill), 0});
  }
};

std::vector<Row> measure(const ModelBenchFlags& flags, ModelOptions options, double bandwidth) {
  const Timer load_timer;
  const std::shared_ptr<Model> model = open_model({.model = options});
  const double load = load_timer.seconds();
  const bool on_gpu = !model->device().is_host();
  // Without them a long prompt takes minutes.
  const bool on_tensor_cores =
      model->arithmetic().order == Order::hopper || model->arithmetic().is_baseline;
  if (on_gpu) bandwidth = measure_read_bandwidth(*model);
  // A GPU's limits of products are in docs/benchmarks.md.
  const double bytes = static_cast<double>(model->weight_bytes_per_token());
  const DecoderSpec& spec = model->spec();

  std::vector<double> one, many, prefill, short_prefill, peaks;
  ProgressLine progress(!flags.model.json);
  LongContext long_context;
  const std::optional<bool> async = flags.async_scheduling;
  for (int round = 0; round < flags.rounds; ++round) {
    progress.show_share("bench", round, flags.rounds, "rounds");
    const Seconds single = run_requests(model, 1, 16, 64, 512, async);
    one.push_back(single.decode_steps / single.decode);
    many.push_back(32 * 128 / run_requests(model, 32, 16, 128, 512, async).total);
    // Beside the prefill that it bounds: the clock changes with the load of the whole machine.
    peaks.push_back(
        on_gpu ? 0 : measure_product_peak(model->pool(), peak_set(model->instruction_set())));
    prefill.push_back(512 / run_requests(model, 1, 512, 1, 512, async).total);
    short_prefill.push_back(128 / run_requests(model, 1, 128, 1, 128, async).total);
    if (on_gpu && on_tensor_cores) long_context.measure(model, async);
  }
  progress.clear();
  const double peak = median(peaks);
  if (flags.profile) print_profiles(model, flags, peak, bandwidth);
  const double tokens_1 = median(one), tokens_32 = median(many);
  // The peak is that of products of bf16 or f32.
  const auto prefill_row = [&](double tokens, const std::vector<double>& rates) {
    const bool has_limit = !model->arithmetic().is_quantised();
    return Row{fmt::format("prefill {}", tokens), "tok/s", median(rates),
               has_limit ? tokens * peak / prefill_operations(spec, tokens) : 0};
  };
  std::vector<Row> rows = {
      {"load", "s", load, 0},
      {"decode, batch 1", "tok/s", tokens_1, bandwidth / bytes},
      {"decode, batch 32, total", "tok/s", tokens_32, 0},
      {"batch 32 over batch 1", "x", tokens_32 / tokens_1, 0},
      prefill_row(512, prefill),
      prefill_row(128, short_prefill),
  };
  if (on_gpu) long_context.add_to(rows);
  rows.push_back(on_gpu ? Row{"read bandwidth", "GB/s", bandwidth / 1e9, 0}
                        : Row{"product peak", "GFLOP/s", peak / 1e9, 0});
  return rows;
}

json::Value to_json(const std::vector<Row>& rows) {
  json::Value v;
  for (const Row& row : rows) {
    json::Value one;
    one.set("value", row.value);
    one.set("unit", row.unit);
    if (row.limit > 0) {
      one.set("limit", row.limit);
      one.set("share", row.value / row.limit);
    }
    v.set(row.what, std::move(one));
  }
  return v;
}

// The CPU's bandwidth; a GPU's is measured with the model.
double cpu_bandwidth(const ModelBenchFlags& flags) {
  ThreadPool pool(flags.model.options.threads);
  const auto device = make_host_device();
  DeviceArray<std::byte> memory(*device, static_cast<size_t>(flags.limit_mib) << 20,
                                "the bandwidth measurement");
  std::fill(memory.data(), memory.data() + memory.size(), std::byte{1});
  return measure_read_bandwidth(pool, {memory.data(), memory.size()});
}

void print_rows(const std::vector<Row>& rows) {
  for (const Row& row : rows)
    fmt::print("  {:26} {:10.2f} {:8} {}\n", row.what, row.value, row.unit,
               row.limit > 0 ? fmt::format("{:5.1f} % of the limit {:.1f}",
                                           100 * row.value / row.limit, row.limit)
                             : "");
  std::fflush(stdout);
}

std::string share_of(const Row& row) {
  return row.limit > 0 ? fmt::format("{:.1f} %", 100 * row.value / row.limit) : "-";
}

// The same for 1, 2, 4, ... threads and for all of them, bandwidth and peak measured with as many.
int run_scaling(ModelBenchFlags flags, const ModelOptions& options) {
  if (options.device != "cpu" || !flags.sets.empty() || flags.against_control || flags.profile)
    fail_usage(
        "--scaling is for the CPU: leave out --device, --sets, --against-control, --profile");
  const int most = options.threads > 0 ? options.threads : ThreadPool(0).size();
  json::Array table;
  if (!flags.model.json)
    fmt::print(
        "{}, medians of {} rounds, tok/s and shares of what as many threads can do\n\n"
        "  threads      batch 1  of bandwidth   batch 32      prefill 512    of peak\n",
        options.model, flags.rounds);
  std::vector<Row> single;
  for (int threads = 1;; threads = std::min(2 * threads, most)) {
    flags.model.options.threads = threads;
    ModelOptions here = options;
    here.threads = threads;
    const std::vector<Row> rows = measure(flags, here, cpu_bandwidth(flags));
    if (single.empty()) single = rows;
    const Row &one = rows[1], &many = rows[2], &prefill = rows[4];
    if (!flags.model.json)
      fmt::print("  {:7} {:7.1f} {:4.1f}x {:>12} {:7.1f} {:4.1f}x {:9.1f} {:4.1f}x {:>10}\n",
                 threads, one.value, one.value / single[1].value, share_of(one), many.value,
                 many.value / single[2].value, prefill.value, prefill.value / single[4].value,
                 share_of(prefill));
    std::fflush(stdout);
    json::Value row = to_json(rows);
    row.set("threads", threads);
    table.push_back(std::move(row));
    if (threads == most) break;
  }
  if (flags.model.json)
    fmt::print("{}\n", json::dump(json::Object{{"model", options.model}, {"rows", table}}, 2));
  return 0;
}

int run_bench(ModelBenchFlags flags) {
  if (flags.rounds < 1) fail_usage("expected 1 or more rounds, found {}", flags.rounds);
  ModelOptions& options = flags.model.options;
  const bool on_cpu = options.device == "cpu";
  if (flags.profile && (!on_cpu || flags.model.json))
    fail_usage("--profile is for the CPU and prints no JSON: leave out --device and --json");
  use_made_model(flags.model, "bench-473m");
  if (flags.steps.wanted()) {
    if (flags.sweep || flags.model.json)
      fail_usage(
          "--ragged, --contexts, --mixed and --shared print tables: leave out --sweep and --json");
    return run_step_bench(flags.steps, options, flags.batches, flags.rounds);
  }
  if (flags.sweep) {
    check_sweep(flags);
    return run_sweep(flags, options);
  }
  if (flags.scaling) return run_scaling(flags, options);
  const double bandwidth = on_cpu ? cpu_bandwidth(flags) : 0;
  if (flags.sets.empty()) flags.sets = {options.instruction_set};
  std::vector<std::string> arithmetics = {options.arithmetic};
  if (flags.against_control) arithmetics.push_back("control");

  json::Value report;
  report.set("model", options.model);
  report.set("device", options.device);
  if (on_cpu) report.set("read_bandwidth_gb_per_s", bandwidth / 1e9);
  if (!flags.model.json) {
    fmt::print("{} on {}; ", options.model, options.device);
    if (on_cpu) fmt::print("read bandwidth {:.1f} GB/s; ", bandwidth / 1e9);
    fmt::print("medians of {} rounds\n", flags.rounds);
  }
  for (const std::string& arithmetic : arithmetics)
    for (const std::string& set : flags.sets) {
      options.arithmetic = arithmetic;
      options.instruction_set = set;
      const std::vector<Row> rows = measure(flags, options, bandwidth);
      report.set(fmt::format("{}/{}", arithmetic, set), to_json(rows));
      if (flags.model.json) continue;
      fmt::print("\n{} on {}\n", arithmetic, on_cpu ? set : options.device);
      print_rows(rows);
    }
  if (flags.model.json) fmt::print("{}\n", json::dump(report, 2));
  return 0;
}

// Single steps that are measured in the place of decode and prefill.
void add_step_flags(CLI::App& command, StepFlags& steps) {
  command.add_flag("--ragged", steps.ragged,
                   "Instead: steps of sequences of unequal contexts beside even ones");
  command.add_option("--mean", steps.mean, "With --ragged: tokens of a context in the mean")
      ->capture_default_str();
  command
      .add_option("--contexts", steps.contexts,
                  "Instead: a step of sequences with these contexts beside an even one")
      ->delimiter(',');
  command
      .add_option(
          "--mixed", steps.mixed,
          "Instead: by parts, a step of so many ROWS of a prompt and DECODES sequences that "
          "decode, all behind CONTEXT tokens")
      ->delimiter(',');
  command
      .add_option("--shared", steps.shared,
                  "Instead: a step of so many SEQUENCES that decode behind a PREFIX of tokens that "
                  "they share and OWN tokens each, beside one in which each has the prefix itself")
      ->delimiter(',');
}

}  // namespace

void add_bench_model(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "model", "Measure decode and prefill of a model (default: bench-473m with random weights)");
  auto flags = std::make_shared<ModelBenchFlags>();
  add_model_flags(*command, flags->model);
  command->add_option("--sets", flags->sets, "Instruction sets to measure one after the other")
      ->delimiter(',');
  command->add_flag("--scaling", flags->scaling,
                    "Instead: 1, 2, 4, ... threads up to all, each with its shares of the "
                    "bandwidth and the peak that as many threads reach");
  command->add_flag("--against-control", flags->against_control,
                    "Measure the baseline (--arith control) as well");
  add_switch(*command, "async-scheduling", flags->async_scheduling,
             "Begin a step before the last one has ended (default: on with a GPU)");
  command->remove_option(command->get_option("--exchange"));
  command
      ->add_option("--exchange", flags->model.options.exchange,
                   "How ranks on GPUs exchange partial sums: auto, nccl, host and staged as of "
                   "generate; none, which makes answers wrong and shows what the exchange costs; "
                   "nccl-sum, NCCL's own sum, of no order that is promised")
      ->capture_default_str();
  command->add_flag("--profile", flags->profile,
                    "Show the time of each operation and its share of the machine's limit");
  command->add_flag("--sweep", flags->sweep,
                    "Instead: many batch sizes and prompt lengths, the baseline in turn");
  command
      ->add_option("--batches", flags->batches,
                   "With --sweep and --ragged: batch sizes that decode. A sweep measures these "
                   "alone where --prompts is not given, too, and prompts alone likewise")
      ->delimiter(',');
  command
      ->add_option("--prompts", flags->prompts,
                   "With --sweep: prompt lengths, in tokens; above 8192 in chunks of as many")
      ->delimiter(',');
  command
      ->add_option("--behind", flags->behind,
                   "With --sweep: tokens of a prompt behind which batches decode")
      ->capture_default_str();
  command->add_flag("--alone", flags->alone, "With --sweep: leave out the baseline");
  add_step_flags(*command, flags->steps);
  command->add_option("--rounds", flags->rounds, "Rounds; the medians are shown")
      ->capture_default_str();
  command->add_option("--limit-mib", flags->limit_mib, "MiB to read when measuring the bandwidth")
      ->capture_default_str();
  show_first(*command,
             {{"What is measured",
               {"--against-control", "--sweep", "--batches", "--prompts", "--scaling", "--profile",
                "--rounds"}},
              {"Model and machine",
               {"--load-format", "--device", "--threads", "--tensor-parallel-size", "--json"}}});
  command->callback([&action, command, flags] {
    const bool has_batches = command->count("--batches"), has_prompts = command->count("--prompts");
    if (flags->sweep && has_batches && !has_prompts) flags->prompts.clear();
    if (flags->sweep && has_prompts && !has_batches) flags->batches.clear();
    action = [flags] { return run_bench(*flags); };
  });
}

}  // namespace invar::cli
