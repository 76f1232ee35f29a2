#include "load_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "workload/step_samples.h"

namespace invar::cli {

LoadBench::LoadBench(const BenchLoadFlags& flags, LoadSpec spec, std::shared_ptr<Model> model)
    : flags_(flags),
      spec_(std::move(spec)),
      model_(std::move(model)),
      progress_(!flags.model.json),
      search_clock_(flags.search_clock),
      most_requests_(most_requests(spec_)) {
  if (spec_.longest() > model_->spec().max_positions)
    fail_usage("expected a model of at least {} positions for this load, found {}", spec_.longest(),
               model_->spec().max_positions);
  BlockPool pool(spec_.longest(), 64);
  for (const PolicySpec& policy : spec_.policies)
    for (const int budget : policy.budgets)
      make_scheduler(options({policy, budget}).scheduler, pool);
}

LoadReport LoadBench::run() {
  LoadReport report{.spec = spec_, .clock = flags_.clock, .rate = spec_.arrivals.rate};
  const bool searches = report.rate == 0 && spec_.arrivals.kind != "trace";
  report.slos = slos();
  if (flags_.clock == "model" || (searches && search_clock_ == "model")) measure_cost(report);
  for (const PolicySpec& policy : spec_.policies)
    report.policies.push_back({.policy = policy.name, .budget = policy.budgets.front()});
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
  return report;
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
  if (clock != "model") return make_instance_server(model_, o);
  return make_scheduler_server(o.scheduler, blocks(o), o.block_size);
}

// As many as the engine would have.
int LoadBench::blocks(const EngineOptions& o) {
  if (blocks_ == 0)
    blocks_ = Instance({.model = model_->options(), .engine = o}, model_).engine().num_blocks();
  return blocks_;
}

std::string LoadBench::passing_clock() const {
  if (flags_.clock != "model") return flags_.clock;
  // Processor time where there is one thread: a busy machine does not disturb it.
  const bool is_alone = model_->device().is_host() && model_->options().threads == 1;
  return is_alone ? "cpu" : "real";
}

const PolicySpec& LoadBench::policy(const std::string& name) const {
  return *std::ranges::find(spec_.policies, name, &PolicySpec::name);
}

void LoadBench::measure_cost(LoadReport& report) {
  progress_.show("measuring what steps cost ...");
  StepSampling sampling{.seconds = flags_.cost_seconds};
  for (const PolicySpec& policy : spec_.policies)
    for (const int budget : policy.budgets) sampling.engines.push_back(options({policy, budget}));
  sampling.requests = make_requests(spec_, std::min(spec_.requests, most_requests_), 1);
  const auto passing = [&] { return clock(passing_clock()); };
  cost_ = fit_step_cost(measure_steps(model_, passing, sampling));
  report.cost = cost_;
}

// "auto": Sarathi's rule, 5 and 25 times a step of 32 sequences that decode behind 4096 tokens, or
// behind as many as the model has positions for.
std::vector<Slo> LoadBench::slos() {
  std::vector<Slo> slos;
  for (const std::string& text : flags_.slos) {
    if (text == "auto") {
      const int context = std::min(4096, model_->spec().max_positions - 1);
      const double step = decode_step_seconds(*model_, 32, context);
      for (const int times : {5, 25})
        slos.push_back({fmt::format("{} x {:.2f} ms, 32 sequences behind {} tokens", times,
                                    1e3 * step, context),
                        times * step});
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
    if (s.is_balanced() || n == most_requests_ || s.delay_growth > kFarBeyond ||
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

// By the cost model first; where it is wrong, by the clock that passes, from the model's figures
// on.
void LoadBench::search(LoadReport& report) {
  for (PolicyReport& p : report.policies)
    for (size_t slo = 0; slo < report.slos.size(); ++slo) search(policy(p.policy), slo, report, p);
  PolicyReport& first = report.policies.front();
  if (search_clock_ == "model" && flags_.check_cost && first.best(0)->capacity.rate > 0) {
    report.check = check(first);
    if (!report.check.agrees()) {
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
  }
  report.search_clock = search_clock_;
  for (PolicyReport& p : report.policies) {
    p.budget = p.best(0)->budget;
    if (flags_.sides) run_sides(report, p);
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

CostCheck LoadBench::check(const PolicyReport& first) {
  const PolicyReport::Search& best = *first.best(0);
  const Arm arm{policy(first.policy), best.budget};
  CostCheck check{.policy = first.policy, .budget = best.budget, .points = {}};
  for (const double share : {0.5, 0.75, 0.9}) {
    const double rate = share * best.capacity.rate;
    const int n = requests_for(arm, rate);
    check.points.push_back(
        {rate, n, summary_at("model", arm, rate, n), summary_at(passing_clock(), arm, rate, n)});
  }
  return check;
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
