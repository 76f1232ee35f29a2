// invar bench schedule: what planning and committing a step costs with many live sequences.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/timer.h"
#include "cli/command.h"

namespace invar::cli {

namespace {

struct BenchScheduleFlags {
  int live = 1000, steps = 2000;
  double limit_us = 0;  // 0: none
  bool prefix_caching = false;
  bool json = false;
};

constexpr int kPrompt = 128, kLongestAnswer = 256, kBlockSize = 64;

// Keeps `live` sequences in a scheduler, waiting or running: who ends is replaced.
class ScheduledLoad {
 public:
  ScheduledLoad(const std::string& policy, const BenchScheduleFlags& flags)
      : pool_(flags.live * ((kPrompt + kLongestAnswer) / kBlockSize + 1) * 2, kBlockSize) {
    if (flags.prefix_caching) cache_.emplace(pool_);
    SchedulerOptions options;
    options.policy = policy;
    options.max_num_seqs = flags.live;
    options.max_num_batched_tokens = flags.live * kPrompt;  // all of them can begin at once
    options.max_model_len = kPrompt + kLongestAnswer;
    budget_ = options.max_num_batched_tokens;
    scheduler_ = make_scheduler(options, pool_, cache_ ? &*cache_ : nullptr);
    for (int i = 0; i < flags.live; ++i) add();
  }

  // Plans and commits one step; returns the seconds of both.
  double step() {
    const Timer planning;
    scheduler_->plan(budget_, plan_);
    double seconds = planning.seconds();
    if (plan_.entries.empty())
      fail("the scheduler planned nothing with {} sequences", live_.size());
    results_.clear();
    for (const StepEntry& entry : plan_.entries) results_.push_back(sample(entry));
    const Timer committing;
    scheduler_->commit(plan_, results_);
    seconds += committing.seconds();
    for (const StepEntry& entry : plan_.entries)
      if (live_.at(entry.id).left == 0) {
        live_.erase(entry.id);
        add();
      }
    return seconds;
  }

  int entries() const { return static_cast<int>(plan_.entries.size()); }

 private:
  struct Live {
    std::vector<int32_t> tokens;
    int left = 0;  // of the answer
  };

  void add() {
    const int64_t id = next_id_++;
    Live& live = live_[id];
    live.left = 64 + static_cast<int>(id * 7919 % (kLongestAnswer - 64 + 1));
    live.tokens.reserve(kPrompt + kLongestAnswer);
    for (int i = 0; i < kPrompt; ++i)
      live.tokens.push_back(static_cast<int32_t>((id * 104729 + i * 31) % 32000));
    scheduler_->add({.id = id, .tokens = kPrompt, .prefix = cache_ ? &live.tokens : nullptr});
  }

  StepResult sample(const StepEntry& entry) {
    if (!entry.samples) return {};
    Live& live = live_.at(entry.id);
    live.tokens.push_back(1);
    return {.new_tokens = 1, .finished = --live.left == 0};
  }

  BlockPool pool_;
  std::optional<PrefixCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<int64_t, Live> live_;
  int64_t next_id_ = 0;
  int32_t budget_ = 0;
  StepPlan plan_;
  std::vector<StepResult> results_;
};

double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

int run_bench_schedule(const BenchScheduleFlags& flags) {
  if (flags.live < 1 || flags.live > 100000 || flags.steps < 100 || flags.steps > 10000000)
    fail_usage("expected 1 to 100000 live sequences and 100 to 10000000 steps, found {} and {}",
               flags.live, flags.steps);
  if (!(flags.limit_us >= 0))
    fail_usage("expected limit-us of 0 or more, found {}", flags.limit_us);
  json::Value report;
  if (!flags.json)
    fmt::print(
        "{} live sequences, {} steps; microseconds of plan and commit together\n"
        "  {:20} {:>8} {:>8} {:>8} {:>12}\n",
        flags.live, flags.steps, "policy", "median", "P99", "largest", "sequences");
  bool within = true;
  for (const std::string& policy : scheduler_names()) {
    ScheduledLoad load(policy, flags);
    for (int i = 0; i < 300; ++i) load.step();  // the first answers end and others begin
    std::vector<double> us;
    double entries = 0;
    for (int i = 0; i < flags.steps; ++i) {
      us.push_back(1e6 * load.step());
      entries += load.entries();
    }
    std::sort(us.begin(), us.end());
    const double median = quantile(us, 0.5);
    entries /= flags.steps;
    within &= flags.limit_us == 0 || median <= flags.limit_us;
    if (!flags.json)
      fmt::print("  {:20} {:8.1f} {:8.1f} {:8.1f} {:12.1f}\n", policy, median, quantile(us, 0.99),
                 us.back(), entries);
    report.set(policy, json::Object{{"median_us", median},
                                    {"p99_us", quantile(us, 0.99)},
                                    {"largest_us", us.back()},
                                    {"sequences_per_step", entries}});
  }
  if (flags.json) fmt::print("{}\n", json::dump(report, 2));
  if (!within) fail("expected medians of at most {} us, found more", flags.limit_us);
  return 0;
}

}  // namespace

void add_bench_schedule(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "schedule", "Measure planning and committing a step for each policy, without a model");
  auto flags = std::make_shared<BenchScheduleFlags>();
  command->add_option("--live", flags->live, "Live sequences")->capture_default_str();
  command->add_option("--steps", flags->steps, "Steps to measure")->capture_default_str();
  command
      ->add_option("--limit-us", flags->limit_us,
                   "Exit with 1 if a median is above this; 0 is no limit")
      ->capture_default_str();
  command->add_flag("--enable-prefix-caching", flags->prefix_caching,
                    "Enable the prefix cache; no two prompts share a prefix");
  command->add_flag("--json", flags->json, "Print JSON for machines");
  command->callback([&action, flags] { action = [flags] { return run_bench_schedule(*flags); }; });
}

}  // namespace invar::cli
