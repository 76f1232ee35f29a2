// invar bench load: a load of requests through the engine under each scheduling policy; what their
// users see, and the rate that each policy can take.
#include <fmt/format.h>

#include <algorithm>

#include "base/atomic_file.h"
#include "base/error.h"
#include "cli/help_format.h"
#include "cli/switch_flag.h"
#include "load_bench.h"
#include "workload/metrics_store.h"

namespace invar::cli {

namespace {

std::string three(const Percentiles& p) {
  return fmt::format("{:7.1f} {:7.1f} {:7.1f}", 1e3 * p.p50, 1e3 * p.p90, 1e3 * p.p99);
}

std::string verdict(const CapacityPoint& point) {
  return fmt::format("{:.3f} {}", point.rate,
                     point.is_within      ? "within"
                     : point.is_saturated ? "saturated"
                                          : "beyond");
}

// By SLO: each policy's capacity with its best budget, and how many times it the first policy's is.
void print_capacities(const LoadReport& report) {
  if (report.search_clock.empty()) return;
  for (size_t slo = 0; slo < report.slos.size(); ++slo) {
    fmt::print("\n{:20} {:>6} {:>9} {:>8}   P99 TBT of at most {:.1f} ms ({})\n", "capacity",
               "rows", "req/s", "first x", 1e3 * report.slos[slo].tbt_p99, report.slos[slo].name);
    const double first = report.policies.front().best(slo)->capacity.rate;
    for (const PolicyReport& p : report.policies) {
      const PolicyReport::Search& s = *p.best(slo);
      fmt::print("{:20} {:6} {:9.3f} {:>8}", p.policy, s.budget, s.capacity.rate,
                 s.capacity.rate > 0 ? fmt::format("{:.2f}", first / s.capacity.rate) : "");
      for (const CapacityPoint& side : s.sides) fmt::print("   {}", verdict(side));
      fmt::print("\n");
    }
  }
}

void print_check(const CostCheck& check) {
  if (check.points.empty()) return;
  fmt::print(
      "\nthe cost model beside the clock, {}, {} rows\n{:>9} {:>8}   {:>17}   {:>17}   {:>17}\n",
      check.policy, check.budget, "rate", "requests", "req/s", "delay P50 ms", "TBT P99 ms");
  const auto pair = [](double model, double measured) {
    return fmt::format("{:8.2f} {:8.2f}", model, measured);
  };
  for (const CostCheck::Point& p : check.points)
    fmt::print("{:9.3f} {:8}   {}   {}   {}   {}\n", p.rate, p.requests,
               pair(p.model.requests_per_second, p.measured.requests_per_second),
               pair(1e3 * p.model.scheduling_delay.p50, 1e3 * p.measured.scheduling_delay.p50),
               pair(1e3 * p.model.tbt.p99, 1e3 * p.measured.tbt.p99),
               p.agrees() ? "agrees" : "differs");
}

void print_steps(const LoadReport& report) {
  fmt::print("\n{:20} {:>8} {:>12} {:>12} {:>8} {:>9} {:>9} {:>10} {:>8}\n", "steps", "number",
             "prompt rows", "decode rows", "mixed", "running", "waiting", "preempted", "idle");
  for (const PolicyReport& p : report.policies) {
    const LoadSummary& s = p.summary;
    fmt::print("{:20} {:8} {:12.1f} {:12.1f} {:6.1f} % {:9.1f} {:9.1f} {:10} {:6.1f} %\n", p.policy,
               s.steps, s.prompt_rows, s.decode_rows, 100 * s.mixed_share, s.running, s.waiting,
               s.preempted, 100 * s.idle_share);
  }
}

void print(const LoadReport& report) {
  fmt::print("{}\n{}\n{} requests, {:.4f} per second; clock: {}{}\n\n", report.model,
             report.machine, report.spec.requests, report.rate, report.clock,
             report.search_clock.empty() ? "" : ", of the search: " + report.search_clock);
  fmt::print("{:20} {:>6} {:>8} {:>8}   {:>23}   {:>23}   {:>23}\n", "policy", "rows", "req/s",
             "tok/s", "TTFT P50/P90/P99 ms", "TBT P50/P90/P99 ms", "delay P50/P90/P99 ms");
  for (const PolicyReport& p : report.policies)
    fmt::print("{:20} {:6} {:8.3f} {:8.1f}   {}   {}   {}\n", p.policy, p.budget,
               p.summary.requests_per_second, p.summary.answer_tokens_per_second,
               three(p.summary.ttft), three(p.summary.tbt), three(p.summary.scheduling_delay));
  print_steps(report);
  print_capacities(report);
  if (report.cost)
    fmt::print("\nthe cost model is fitted to {} steps, off by {:.1f} % of a step in the mean\n",
               report.cost->steps, 100 * report.cost->error);
  print_check(report.check);
  if (const std::string sentence = compare_stalls(report); !sentence.empty())
    fmt::print("\n{}\n", sentence);
  for (const std::string& warning : warnings_of(report)) fmt::print("\n{}\n", warning);
}

void check(const BenchLoadFlags& flags) {
  for (const std::string& clock : {flags.clock, flags.search_clock})
    if (clock != "real" && clock != "cpu" && clock != "model")
      fail_usage("expected the clock real, cpu or model, found {}", json::quoted(clock));
  if (flags.model.options.threads != 1 && (flags.clock == "cpu" || flags.search_clock == "cpu"))
    fail_usage("the clock cpu counts the processor time of one thread: add --threads 1");
  if (flags.requests < 0 || flags.requests > 1000000)
    fail_usage("expected 1 to 1000000 requests, or 0 for the load's own number, found {}",
               flags.requests);
  if (!(flags.cost_seconds > 0 && flags.cost_seconds <= 1e3))
    fail_usage("expected --cost-seconds above 0 and up to 1000, found {}", flags.cost_seconds);
  if (!(flags.run_seconds >= 0 && flags.run_seconds <= 1e6))
    fail_usage("expected --run-seconds up to 1000000, or 0 for the load's own, found {}",
               flags.run_seconds);
  for (const double rate : flags.check_rates)
    if (!(rate > 0 && rate <= 1e6))
      fail_usage("expected --check-rates above 0 and up to 1000000, found {}", rate);
  if (!(flags.rate >= 0 && flags.rate <= 1e6))
    fail_usage("expected a rate of up to 1000000 requests per second, found {}", flags.rate);
}

LoadSpec read_spec(const BenchLoadFlags& flags) {
  LoadSpec spec = read_load(flags.load);
  if (!flags.trace.empty()) {
    if (spec.trace.file.empty())
      fail_usage("{}: --trace takes the place of a load's trace, and this one has none",
                 flags.load);
    spec.trace.file = flags.trace;
  }
  if (flags.requests > 0) spec.requests = flags.requests;
  if (flags.rate > 0) spec.arrivals.rate = flags.rate;
  if (flags.run_seconds > 0) spec.run_seconds = flags.run_seconds;
  if (flags.policies.empty()) return spec;
  std::vector<PolicySpec> chosen;
  for (const std::string& name : flags.policies) {
    const auto found = std::find_if(spec.policies.begin(), spec.policies.end(),
                                    [&](const PolicySpec& p) { return p.name == name; });
    if (found == spec.policies.end())
      fail_usage("{}: there is no policy {} in this load", flags.load, json::quoted(name));
    chosen.push_back(*found);
  }
  spec.policies = std::move(chosen);
  return spec;
}

int run_bench_load(BenchLoadFlags flags) {
  check(flags);
  LoadSpec spec = read_spec(flags);
  use_made_model(flags.model, "bench-100m");
  std::optional<AtomicFile> file;  // a place that cannot be written is known before minutes of work
  if (!flags.report.empty()) file.emplace(flags.report);
  if (!flags.metrics.empty()) make_directories(flags.metrics);
  const LoadReport report = LoadBench(flags, std::move(spec)).run();
  if (file) {
    const std::string html = to_html(report);
    file->write_at(0, std::as_bytes(std::span(html)));
    file->commit();
  }
  if (!flags.metrics.empty())
    for (const PolicyReport& p : report.policies)
      write_metrics(flags.metrics + "/" + p.policy, p.run);
  if (flags.model.json)
    fmt::print("{}\n", json::dump(to_json(report), 2));
  else
    print(report);
  return 0;
}

// How the clock "model" knows what steps cost.
void add_cost_flags(CLI::App& command, BenchLoadFlags& flags) {
  command
      .add_flag(
          "--check-cost,!--no-check-cost", flags.check_cost,
          "Try the cost model at three rates beside the clock; where it is more than 10 % off, "
          "search on the clock instead")
      ->default_str("true");
  command
      .add_option("--cost-seconds", flags.cost_seconds,
                  "Seconds, at most, to measure each kind of steps for the cost model")
      ->capture_default_str();
  command
      .add_option("--check-rates", flags.check_rates,
                  "Rates of that check, requests per second (default: 0.5, 0.75 and 0.9 of the "
                  "first policy's capacity); with a rate for the runs the first policy is checked")
      ->delimiter(',');
  command.add_option("--save-cost", flags.save_cost,
                     "File for what was measured: steps, and the runs of the check");
  command.add_option("--cost", flags.cost,
                     "File of --save-cost, in the place of measuring; with --clock model nothing "
                     "is computed and no device is needed");
}

}  // namespace

void add_bench_load(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "load", "Run a load under each scheduling policy: latency, throughput, capacity, report");
  auto flags = std::make_shared<BenchLoadFlags>();
  command->add_option("LOAD", flags->load, "A load (TOML), such as bench/loads/mixed.toml")
      ->required();
  add_model_flags(*command, flags->model);
  command
      ->add_option("--clock", flags->clock,
                   "real (wall-clock time), cpu (processor time; needs --threads 1), or model (the "
                   "scheduler alone, with measured step costs)")
      ->capture_default_str();
  command->add_option("--search-clock", flags->search_clock, "Clock of the capacity search")
      ->capture_default_str();
  command
      ->add_option(
          "--slo", flags->slos,
          "Bounds of P99 TBT for which capacities are searched, in seconds; auto stands for "
          "5 and 25 times a step of 32 sequences that decode behind 4096 tokens (default: "
          "the load's own)")
      ->delimiter(',');
  add_cost_flags(*command, *flags);
  command->add_option("--run-seconds", flags->run_seconds,
                      "Seconds in which the requests of a run on the clock arrive, at most, while "
                      "capacities are searched and checked; 0 means the load's own number");
  command->add_flag("--sides", flags->sides,
                    "Run the load on the clock 5 % below and above every capacity");
  command->add_option("--trace", flags->trace, "A trace's CSV in the place of the load's");
  command->add_option("--rate", flags->rate,
                      "Requests per second; 0 means the load's own rate or share of capacity");
  command->add_option("--requests", flags->requests,
                      "Requests of a run; 0 means the load's own number");
  command->add_option("--policies", flags->policies, "Run only these policies of the load")
      ->delimiter(',');
  command->add_option("--report", flags->report, "File for a report in HTML");
  command->add_option(
      "--metrics", flags->metrics,
      "Directory for metrics: for each policy CSV by request, by step and over time, "
      "and plots");
  show_first(*command,
             {{"What is measured",
               {"--policies", "--rate", "--requests", "--clock", "--slo", "--trace", "--report",
                "--metrics"}},
              {"Model and machine",
               {"--load-format", "--device", "--threads", "--tensor-parallel-size", "--json"}}});
  command->callback([&action, flags] { action = [flags] { return run_bench_load(*flags); }; });
}

}  // namespace invar::cli
