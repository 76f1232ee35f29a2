#include "load_bench.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "device/cuda_device.h"
#include "engine/layer_windows.h"
#include "workload/metrics_store.h"
#include "workload/step_samples.h"

namespace invar::cli {

LoadBench::LoadBench(const BenchLoadFlags& flags, LoadSpec spec)
    : flags_(flags),
      spec_(std::move(spec)),
      model_options_(resolved(flags.model)),
      config_(read_model_config(model_options_)),
      progress_(!flags.model.json),
      search_clock_(flags.search_clock),
      most_requests_(most_requests(spec_)) {
  getloadavg(&load_before_, 1);
  if (spec_.longest() > config_.spec.max_positions)
    fail_usage("expected a model of at least {} positions for this load, found {}", spec_.longest(),
               config_.spec.max_positions);
  BlockPool pool(spec_.longest(), 64);
  for (const PolicySpec& policy : spec_.policies)
    for (const int budget : policy.budgets)
      make_scheduler(options({policy, budget}).scheduler, pool);
  if (flags_.cost.empty()) return;
  measured_ = read_measurements(flags_.cost);
  if (measured_.model != model_options_.model)
    fail_usage("{}: expected measurements of {}, found those of {}", flags_.cost,
               model_options_.model, measured_.model);
}

LoadReport LoadBench::run() {
  LoadReport report{.spec = spec_, .clock = flags_.clock, .rate = spec_.arrivals.rate};
  const bool searches = report.rate == 0 && spec_.arrivals.kind != "trace";
  const bool checks = !flags_.check_rates.empty();
  report.slos = slos();
  if (flags_.clock == "model" || checks || (searches && search_clock_ == "model")) find_cost();
  report.cost = cost_;
  for (const PolicySpec& policy : spec_.policies)
    report.policies.push_back({.policy = policy.name, .budget = policy.budgets.front()});
  if (checks && !searches)
    report.check =
        check({spec_.policies.front(), spec_.policies.front().budgets.front()}, flags_.check_rates);
  if (searches) {
    search(report);
    const double first = report.policies.front().best(0)->capacity.rate;
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
  report.model = model_ ? fmt::format("{}, {}", model_options_.model, model_->identity())
                        : fmt::format("{}, {}", measured_.model, measured_.identity);
  report.machine = model_ ? machine() : "";
  if (!flags_.cost.empty())
    report.machine +=
        fmt::format("{}steps were measured before, on {}", model_ ? "; " : "", measured_.machine);
  return report;
}

const std::shared_ptr<Model>& LoadBench::model() {
  if (!model_) model_ = open_with_progress({.model = model_options_});
  return model_;
}

std::string LoadBench::machine() {
  double load_after = 0;
  getloadavg(&load_after, 1);
  const std::string gpu = model()->device().is_host() ? "" : describe_cuda_device(0) + ", ";
  return fmt::format(
      "{}{}, {}, {} threads; the machine's load average was {:.1f} before and {:.1f} after: what "
      "is above the threads is other users' work",
      gpu, processor_name(), model()->instruction_set(), model()->pool().size(), load_before_,
      load_after);
}

EngineOptions LoadBench::options(const Arm& arm) const {
  EngineOptions o;
  o.prefix_caching = false;  // random prompts share nothing
  o.kv_bytes = static_cast<int64_t>(spec_.kv_gib * (1 << 30));
  o.scheduler.policy = arm.policy.name;
  const int most = arm.policy.max_num_seqs > 0 ? arm.policy.max_num_seqs : spec_.max_num_seqs;
  o.scheduler.max_num_seqs = std::min(most, arm.budget);
  o.scheduler.max_num_batched_tokens = arm.budget;
  o.scheduler.max_model_len = spec_.longest();
  return o;
}

std::unique_ptr<LoadClock> LoadBench::clock(const std::string& name) const {
  if (name == "real") return make_real_clock();
  return name == "cpu" ? make_cpu_clock() : make_model_clock(*cost_);
}

std::unique_ptr<LoadServer> LoadBench::server(const std::string& clock, const EngineOptions& o) {
  if (clock != "model") return make_instance_server(model(), o);
  SchedulerOptions scheduler = o.scheduler;
  scheduler.max_plans_in_flight = measured_.plans_in_flight;
  return make_scheduler_server(scheduler, blocks(o), o.block_size, layer_windows(config_.spec));
}

// As many as the engine would have.
int LoadBench::blocks(const EngineOptions& o) const {
  return static_cast<int>(o.kv_bytes / (o.block_size * measured_.slot_bytes));
}

std::string LoadBench::passing_clock() {
  if (flags_.clock != "model") return flags_.clock;
  // Processor time where there is one thread: a busy machine does not disturb it.
  const bool is_alone = model()->device().is_host() && model_options_.threads == 1;
  return is_alone ? "cpu" : "real";
}

const PolicySpec& LoadBench::policy(const std::string& name) const {
  return *std::ranges::find(spec_.policies, name, &PolicySpec::name);
}

void LoadBench::find_cost() {
  if (flags_.cost.empty()) {
    if (!flags_.save_cost.empty()) measure_decode_step();
    measure_cost();
  }
  cost_ = fit_step_cost(measured_.steps);
  if (!flags_.save_cost.empty()) save_cost();
}

void LoadBench::measure_cost() {
  progress_.show("measuring what steps cost ...");
  StepSampling sampling{.seconds = flags_.cost_seconds};
  for (const PolicySpec& policy : spec_.policies)
    for (const int budget : policy.budgets) sampling.engines.push_back(options({policy, budget}));
  sampling.requests = make_requests(spec_, std::min(spec_.requests, most_requests_), 1);
  const auto passing = [&] { return clock(passing_clock()); };
  measured_.model = model_options_.model;
  measured_.identity = model()->identity();
  measured_.steps = measure_steps(model(), passing, sampling);
  measured_.machine = machine();
  Instance instance({.model = model()->options(), .engine = sampling.engines.front()}, model());
  const Engine& engine = instance.engine();
  // The clock models plans whose tokens stay on a device; it takes a pipeline's one by one.
  const SchedulerOptions& scheduler = engine.options().scheduler;
  measured_.plans_in_flight = scheduler.splits_decodes ? 1 : scheduler.max_plans_in_flight;
  measured_.slot_bytes =
      engine.kv_bytes() / engine.num_blocks() / sampling.engines.front().block_size;
}

void LoadBench::save_cost() const {
  write_measurements(flags_.save_cost, measured_);
}

void LoadBench::measure_decode_step() {
  if (measured_.decode_seconds > 0) return;
  measured_.decode_sequences = 32;
  measured_.decode_context = std::min(4096, config_.spec.max_positions - 1);
  measured_.decode_seconds =
      decode_step_seconds(*model(), measured_.decode_sequences, measured_.decode_context);
}

// "auto": Sarathi's rule, 5 and 25 times a step of 32 sequences that decode behind 4096 tokens, or
// behind as many as the model has positions for.
std::vector<Slo> LoadBench::slos() {
  std::vector<Slo> slos;
  for (const std::string& text : flags_.slos) {
    if (text == "auto") {
      measure_decode_step();
      for (const int times : {5, 25})
        slos.push_back({fmt::format("{} x {:.2f} ms, {} sequences behind {} tokens", times,
                                    1e3 * measured_.decode_seconds, measured_.decode_sequences,
                                    measured_.decode_context),
                        times * measured_.decode_seconds});
      continue;
    }
    double seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (error != std::errc() || end != text.data() + text.size() || !(seconds > 0 && seconds < 1e6))
      fail_usage("expected --slo auto or a P99 TBT in seconds, found {}", json::quoted(text));
    slos.push_back({fmt::format("{} s", seconds), seconds});
  }
  if (slos.empty()) slos.push_back({"the load's", spec_.limits.tbt_p99});
  return slos;
}

invar::LoadResult LoadBench::run_once(const std::string& clock_name, const Arm& arm,
                                      const std::vector<invar::LoadRequest>& requests) {
  const auto server = this->server(clock_name, options(arm));
  const auto clock = this->clock(clock_name);
  return invar::run_load(*server, *clock, requests, [&](double seconds, int answered) {
    if (++shown_ % 16 == 0)
      progress_.show(fmt::format("{}, {} rows: {} of {} requests answered, {:.1f} s",
                                 arm.policy.name, arm.budget, answered, requests.size(), seconds));
  });
}

LoadSummary LoadBench::summary_at(const std::string& clock_name, const Arm& arm, double rate,
                                  int requests) {
  return summarize(run_once(clock_name, arm, make_requests(spec_, requests, rate)));
}

// By the cost model, of as many requests as it takes to be in balance. It stops at what is beyond
// the limits by the delay alone, which only grows with the run, and where requests come far faster
// than they are answered.
LoadBench::Sized LoadBench::run_by_model(const Arm& arm, double rate) {
  constexpr double kFarBeyond = 0.3;
  for (int n = std::min(spec_.search_requests, most_requests_);;
       n = std::min(2 * n, most_requests_)) {
    const LoadSummary s = summary_at("model", arm, rate, n);
    if (s.is_balanced() || n == most_requests_ || s.backlog_growth > kFarBeyond ||
        s.scheduling_delay.p50 > 2 * spec_.limits.scheduling_delay_p50)
      return {n, s};
  }
}

// On the clock as many as the model's, as far as the time allows.
int LoadBench::requests_for(const Arm& arm, double rate) {
  const int most =
      cost_ ? run_by_model(arm, rate).requests : std::min(spec_.search_requests, most_requests_);
  return static_cast<int>(std::clamp(rate * spec_.run_seconds, 1.0, double(most)));
}

LoadSummary LoadBench::run_at(const std::string& clock_name, const Arm& arm, double rate) {
  if (clock_name == "model") return run_by_model(arm, rate).summary;
  return summary_at(clock_name, arm, rate, requests_for(arm, rate));
}

// Searches by the cost model first; where that is wrong, by the clock, from the model's figures on.
void LoadBench::search(LoadReport& report) {
  for (PolicyReport& p : report.policies)
    for (size_t slo = 0; slo < report.slos.size(); ++slo) search(policy(p.policy), slo, report, p);
  PolicyReport& first = report.policies.front();
  const PolicyReport::Search& best = *first.best(0);
  if (search_clock_ == "model" && flags_.check_cost && best.capacity.rate > 0) {
    report.check = check({policy(first.policy), best.budget}, check_rates(best.capacity.rate));
    // Measurements of another machine say nothing of this one's clock.
    if (!report.check.agrees() && flags_.cost.empty()) search_again(report);
  }
  report.search_clock = search_clock_;
  for (PolicyReport& p : report.policies) {
    p.budget = p.best(0)->budget;
    if (flags_.sides) run_sides(report, p);
  }
}

// On the clock that passes, from the model's figures on.
void LoadBench::search_again(LoadReport& report) {
  search_clock_ = passing_clock();
  for (PolicyReport& p : report.policies) {
    const auto guesses = std::move(p.searches);
    p.searches.clear();
    for (size_t slo = 0; slo < report.slos.size(); ++slo) {
      first_rate_ = 0;
      for (const PolicyReport::Search& s : guesses)
        if (s.slo == slo) first_rate_ = std::max(first_rate_, s.capacity.rate);
      if (first_rate_ == 0) first_rate_ = 1;
      search(policy(p.policy), slo, report, p);
    }
  }
}

void LoadBench::search(const PolicySpec& policy, size_t slo, LoadReport& report, PolicyReport& p) {
  LatencyLimits limits = spec_.limits;
  limits.tbt_p99 = report.slos[slo].tbt_p99;
  for (const int budget : policy.budgets) {
    Capacity capacity = find_capacity(
        limits, first_rate_,
        [&](double rate) {
          return run_at(search_clock_, {policy, budget}, rate);
        },
        search_clock_ == "model" ? 2 : 1.2);
    if (capacity.rate > 0) first_rate_ = capacity.rate;
    p.searches.push_back({budget, slo, std::move(capacity), {}});
  }
}

std::vector<double> LoadBench::check_rates(double capacity) const {
  if (!flags_.check_rates.empty()) return flags_.check_rates;
  return {0.5 * capacity, 0.75 * capacity, 0.9 * capacity};
}

// With measurements from a file by the runs that they hold of this load, where other rates were not
// asked for: this machine's clock says nothing of theirs.
CostCheck LoadBench::check(const Arm& arm, const std::vector<double>& rates) {
  CostCheck check{.policy = arm.policy.name, .budget = arm.budget, .points = {}};
  if (flags_.cost.empty() || !flags_.check_rates.empty()) {
    for (const double rate : rates) check.points.push_back(check_on_clock(arm, rate));
    return check;
  }
  for (const Measurements::Run& run : measured_.runs_of(spec_.name, arm.policy.name, arm.budget))
    check.points.push_back(
        {run.rate, run.requests, summary_at("model", arm, run.rate, run.requests), run.summary});
  return check;
}

CostCheck::Point LoadBench::check_on_clock(const Arm& arm, double rate) {
  const int n = requests_for(arm, rate);
  const LoadSummary model = summary_at("model", arm, rate, n);
  const invar::LoadResult run = run_once(passing_clock(), arm, make_requests(spec_, n, rate));
  if (!flags_.metrics.empty())
    write_metrics(fmt::format("{}/check-{:.2f}", flags_.metrics, rate), run);
  const LoadSummary measured = summarize(run);
  measured_.runs.push_back({spec_.name, arm.policy.name, arm.budget, n, rate, measured});
  if (!flags_.save_cost.empty()) save_cost();
  return {rate, n, model, measured};
}

// Twice the search's precision to either side.
void LoadBench::run_sides(const LoadReport& report, PolicyReport& p) {
  for (size_t slo = 0; slo < report.slos.size(); ++slo) {
    PolicyReport::Search& best = *p.best(slo);
    for (const double side : {0.95, 1.05}) {
      if (best.capacity.rate == 0) continue;
      const double rate = side * best.capacity.rate;
      const LoadSummary s = run_at(passing_clock(), {policy(p.policy), best.budget}, rate);
      LatencyLimits limits = spec_.limits;
      limits.tbt_p99 = report.slos[slo].tbt_p99;
      best.sides.push_back(point_of(limits, rate, s));
    }
  }
}

void LoadBench::measure(const std::vector<invar::LoadRequest>& requests, PolicyReport& p) {
  p.run = run_once(flags_.clock, {policy(p.policy), p.budget}, requests);
  p.summary = summarize(p.run);
  if (!cost_) return;
  for (const LoadStep& step : p.run.steps) p.predicted_seconds += cost_->seconds(step.work);
}

}  // namespace invar::cli
