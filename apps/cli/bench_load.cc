// invar bench load: a load of requests through the engine under each scheduling policy; what their
// users see, and the rate that each policy can take.
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>

#include "base/atomic_file.h"
#include "base/error.h"
#include "command.h"
#include "workload/load_report.h"
#include "workload/metrics_store.h"

namespace invar::cli {

namespace {

struct BenchLoadFlags {
  ModelFlags model;
  std::string load, report, metrics;
  std::string clock = "real", search_clock = "model";
  std::vector<std::string> policies;
  double rate = 0;
  int requests = 0;
};

// Runs one load under many policies on one model.
class LoadBench {
 public:
  LoadBench(const BenchLoadFlags& flags, LoadSpec spec, std::shared_ptr<Model> model)
      : flags_(flags),
        spec_(std::move(spec)),
        model_(std::move(model)),
        progress_(!flags.model.json) {
    if (spec_.longest() > model_->spec().max_positions)
      fail_usage("expected a model of at least {} positions for this load, found {}",
                 spec_.longest(), model_->spec().max_positions);
    // What no scheduler takes is refused before anything runs.
    BlockPool pool(spec_.longest(), 64);
    for (const PolicySpec& policy : spec_.policies)
      for (const int budget : policy.budgets)
        make_scheduler(options(policy.name, budget).scheduler, pool);
  }

  LoadReport run() {
    LoadReport report{.spec = spec_, .clock = flags_.clock, .rate = spec_.arrivals.rate};
    const bool searches = report.rate == 0 && spec_.arrivals.kind != "trace";
    if (searches) report.search_clock = flags_.search_clock;
    if (flags_.clock == "model" || report.search_clock == "model") measure_cost(report);
    for (const PolicySpec& policy : spec_.policies) {
      PolicyReport& p = report.policies.emplace_back();
      p.policy = policy.name;
      p.budget = policy.budgets.front();
      if (searches) search(policy, p);
    }
    if (searches) {
      const double first = best_of(report.policies.front());
      if (first == 0)
        fail(
            "{} is beyond the limits at every rate that was tried: no load can be derived from "
            "its capacity",
            report.policies.front().policy);
      report.rate = spec_.arrivals.share * first;
    }
    const auto requests = make_requests(spec_, spec_.requests, report.rate);
    if (report.rate == 0)
      report.rate = (spec_.requests - 1) / std::max(1e-9, requests.back().arrival);
    for (PolicyReport& p : report.policies) measure(requests, p);
    return report;
  }

 private:
  EngineOptions options(const std::string& policy, int budget) const {
    EngineOptions o;
    o.prefix_caching = false;  // random prompts share nothing
    o.kv_bytes = static_cast<int64_t>(spec_.kv_gib * (1 << 30));
    o.scheduler.policy = policy;
    o.scheduler.max_num_seqs = std::min(spec_.max_num_seqs, budget);
    o.scheduler.max_num_batched_tokens = budget;
    o.scheduler.max_model_len = spec_.longest();
    return o;
  }

  std::unique_ptr<LoadClock> clock(const std::string& name) const {
    if (name == "real") return make_real_clock();
    return name == "cpu" ? make_cpu_clock() : make_model_clock(*cost_);
  }

  std::unique_ptr<LoadServer> server(const std::string& clock, const EngineOptions& o) {
    if (clock != "model") return make_instance_server(model_, o);
    SchedulerOptions s = o.scheduler;
    return make_scheduler_server(s, blocks(o), o.block_size);
  }

  // As many as the engine would have.
  int blocks(const EngineOptions& o) {
    if (blocks_ == 0)
      blocks_ = Instance({.model = model_->options(), .engine = o}, model_).engine().num_blocks();
    return blocks_;
  }

  void measure_cost(LoadReport& report) {
    progress_.show("measuring what steps cost ...");
    int most = 1;
    for (const PolicySpec& policy : spec_.policies)
      most = std::max(most, *std::max_element(policy.budgets.begin(), policy.budgets.end()));
    // Of the run's own kind. Else processor time where there is one thread: a busy machine does not
    // disturb it.
    const bool is_cpu =
        flags_.clock == "cpu" || (flags_.clock == "model" && model_->options().threads == 1);
    const auto clock = is_cpu ? make_cpu_clock() : make_real_clock();
    cost_ = measure_step_cost(model_, *clock, std::min(most, spec_.longest()), spec_.longest());
    report.cost = cost_;
  }

  LoadResult run_once(const std::string& clock_name, const std::string& policy, int budget,
                      const std::vector<LoadRequest>& requests) {
    const auto server = this->server(clock_name, options(policy, budget));
    const auto clock = this->clock(clock_name);
    return run_load(*server, *clock, requests, [&](double seconds, int answered) {
      if (++shown_ % 16 == 0)
        progress_.show(fmt::format("{}, {} rows: {} of {} requests answered, {:.1f} s", policy,
                                   budget, answered, requests.size(), seconds));
    });
  }

  void search(const PolicySpec& policy, PolicyReport& p) {
    double best = 0;
    for (const int budget : policy.budgets) {
      const double guess = first_rate_;
      Capacity capacity = find_capacity(spec_.limits, guess, [&](double rate) {
        return summarize(run_once(flags_.search_clock, policy.name, budget,
                                  make_requests(spec_, spec_.search_requests, rate)));
      });
      if (capacity.rate > best) {
        best = capacity.rate;
        p.budget = budget;
      }
      if (capacity.rate > 0) first_rate_ = capacity.rate;
      p.searches.push_back({budget, std::move(capacity)});
    }
  }

  static double best_of(const PolicyReport& p) {
    double best = 0;
    for (const PolicyReport::Search& s : p.searches) best = std::max(best, s.capacity.rate);
    return best;
  }

  void measure(const std::vector<LoadRequest>& requests, PolicyReport& p) {
    p.run = run_once(flags_.clock, p.policy, p.budget, requests);
    p.summary = summarize(p.run);
    if (!cost_) return;
    for (const LoadStep& step : p.run.steps) p.predicted_seconds += cost_->seconds(step.work);
  }

  const BenchLoadFlags& flags_;
  LoadSpec spec_;
  const std::shared_ptr<Model> model_;
  ProgressLine progress_;
  std::optional<StepCost> cost_;
  double first_rate_ = 1;
  int blocks_ = 0, shown_ = 0;
};

std::string machine(Model& model, double load_before) {
  double load_after = 0;
  getloadavg(&load_after, 1);
  return fmt::format(
      "{}, {}, {} threads; the machine's load average was {:.1f} before and {:.1f} after: what is "
      "above the threads is other users' work",
      processor_name(), model.instruction_set(), model.pool().size(), load_before, load_after);
}

void print(const LoadReport& report) {
  fmt::print("{}\n{}\n{} requests, {:.4f} per second; clock: {}{}\n\n", report.model,
             report.machine, report.spec.requests, report.rate, report.clock,
             report.search_clock.empty() ? "" : ", of the search: " + report.search_clock);
  fmt::print("{:20} {:>6} {:>9} {:>8} {:>8}   {:>23}   {:>23}   {:>23}\n", "policy", "rows",
             "capacity", "req/s", "tok/s", "TTFT P50/P90/P99 ms", "TBT P50/P90/P99 ms",
             "delay P50/P90/P99 ms");
  const auto three = [](const Percentiles& p) {
    return fmt::format("{:7.1f} {:7.1f} {:7.1f}", 1e3 * p.p50, 1e3 * p.p90, 1e3 * p.p99);
  };
  for (const PolicyReport& p : report.policies) {
    double capacity = 0;
    for (const PolicyReport::Search& s : p.searches) capacity = std::max(capacity, s.capacity.rate);
    fmt::print("{:20} {:6} {:>9} {:8.3f} {:8.1f}   {}   {}   {}\n", p.policy, p.budget,
               p.searches.empty() ? "" : fmt::format("{:.3f}", capacity),
               p.summary.requests_per_second, p.summary.answer_tokens_per_second,
               three(p.summary.ttft), three(p.summary.tbt), three(p.summary.scheduling_delay));
  }
  fmt::print("\n{:20} {:>8} {:>12} {:>12} {:>8} {:>9} {:>9} {:>10}\n", "steps", "number",
             "prompt rows", "decode rows", "mixed", "running", "waiting", "preempted");
  for (const PolicyReport& p : report.policies) {
    const LoadSummary& s = p.summary;
    fmt::print("{:20} {:8} {:12.1f} {:12.1f} {:6.1f} % {:9.1f} {:9.1f} {:10}\n", p.policy, s.steps,
               s.prompt_rows, s.decode_rows, 100 * s.mixed_share, s.running, s.waiting,
               s.preempted);
  }
  if (const std::string sentence = compare_stalls(report); !sentence.empty())
    fmt::print("\n{}\n", sentence);
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
  if (!(flags.rate >= 0 && flags.rate <= 1e6))
    fail_usage("expected a rate of up to 1000000 requests per second, found {}", flags.rate);
}

LoadSpec read_spec(const BenchLoadFlags& flags) {
  LoadSpec spec = read_load(flags.load);
  if (flags.requests > 0) spec.requests = flags.requests;
  if (flags.rate > 0) spec.arrivals.rate = flags.rate;
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
  if (flags.model.options.model.empty()) {
    flags.model.options.model = "bench-100m";
    if (flags.model.options.load_format == "auto") flags.model.options.load_format = "dummy:1";
  }
  std::optional<AtomicFile> file;  // a place that cannot be written is known before minutes of work
  if (!flags.report.empty()) file.emplace(flags.report);
  if (!flags.metrics.empty()) make_directories(flags.metrics);
  double load_before = 0;
  getloadavg(&load_before, 1);
  const auto model = open_with_progress(flags.model);
  LoadReport report = LoadBench(flags, std::move(spec), model).run();
  report.model = fmt::format("{}, {}", model->options().model, model->identity());
  report.machine = machine(*model, load_before);
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
  command->callback([&action, flags] { action = [flags] { return run_bench_load(*flags); }; });
}

}  // namespace invar::cli
