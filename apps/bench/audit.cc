// invar audit: the promise tried on the user's own model. The same requests run under many
// schedules; hashes of all logits of all steps are compared, never text. Beside each axis stands
// the conventional arithmetic, which must fail where a conventional engine would: a check that
// cannot fail is no check.
#include <fmt/format.h>

#include <cmath>
#include <random>
#include <set>

#include "audit_axes.h"
#include "audit_trainer.h"
#include "base/error.h"
#include "base/timer.h"
#include "cli/help_format.h"

namespace invar::cli {

namespace {

struct AuditFlags {
  ModelFlags model;
  bool full = false;
  int completions = 0;  // of the classic; 0: 200, with --full 1000
  // Print the probes' answers and nothing else: tokens of an answer, and of each prompt.
  std::vector<int> only_answers;
  TrainerAuditFlags trainer;
};

// The options with another arithmetic. The baseline runs on the CPU, whatever the device: it is
// there to show that a conventional engine's bits move.
ModelOptions with_arithmetic(ModelOptions options, const std::string& arithmetic) {
  options.arithmetic = arithmetic;
  if (arithmetic.starts_with("control")) options.device = "cpu";
  return options;
}

// The schedule as the baseline runs it. Where that does not depend on the axis it is a foil, whose
// bits do: its products are cut into 1, 2, 4 or 8 runs, by the schedule's place on the axis.
Schedule for_control(Schedule schedule, const Axis& axis, size_t place) {
  const bool is_foil = !axis.control_differs;
  schedule.model = with_arithmetic(schedule.model,
                                   is_foil ? fmt::format("control:{}", 1 << place % 4) : "control");
  if (schedule.place == Schedule::Place::killed) schedule.place = Schedule::Place::apart;
  schedule.keeps_others = schedule.swaps_weights;
  schedule.adapters = 0;  // the baseline has none
  schedule.engine.adapters = {};
  return schedule;
}

struct Result {
  int configurations = 0;
  size_t unique = 1;              // different answers to one probe, the worst probe
  double largest_difference = 0;  // of a token's probability, up to the first different token
  RunCounts counts;               // over all configurations
};

// The largest difference of a token's probability, up to the first different token.
double largest_difference(const Answer& a, const Answer& b) {
  double largest = 0;
  for (size_t i = 0; i < std::min(a.tokens.size(), b.tokens.size()); ++i) {
    if (a.tokens[i] != b.tokens[i]) break;
    largest = std::max(largest, std::fabs(a.probabilities[i] - b.probabilities[i]));
  }
  return largest;
}

Result run_axis(AuditRunner& runner, const Axis& axis, bool is_control) {
  Result result;
  std::map<int64_t, std::set<Answer>> seen;
  for (size_t place = 0; place < axis.schedules.size(); ++place) {
    const Schedule& schedule = axis.schedules[place];
    for (auto& [id, answer] :
         runner.run(is_control ? for_control(schedule, axis, place) : schedule)) {
      for (const Answer& other : seen[id])
        result.largest_difference =
            std::max(result.largest_difference, largest_difference(other, answer));
      seen[id].insert(answer);
    }
    ++result.configurations;
    result.counts.cached += runner.counts().cached;
    result.counts.preempted += runner.counts().preempted;
    result.counts.accepted += runner.counts().accepted;
    result.counts.ahead += runner.counts().ahead;
    result.counts.most_live = std::max(result.counts.most_live, runner.counts().most_live);
  }
  for (const auto& [id, answers] : seen) result.unique = std::max(result.unique, answers.size());
  return result;
}

// He et al.'s test: one prompt answered many times, greedily, among random neighbours.
Result run_classic(AuditRunner& runner, const Schedule& base, const std::string& arithmetic,
                   int completions) {
  InstanceOptions options{.model = with_arithmetic(base.model, arithmetic), .engine = base.engine};
  options.engine.prefix_caching = false;  // every completion is computed
  Instance instance(options, runner.model(options.model));
  Engine& engine = instance.engine();
  const int vocab = instance.model().spec().vocab, answer_tokens = runner.answer_tokens();
  Collector collector;
  std::mt19937 random(1);
  const Request one = random_request(0, vocab, 40, answer_tokens, 40);
  for (int i = 0; i < completions; ++i) {
    Request copy = one;
    copy.id = i;
    engine.add(std::move(copy));
    if (random() % 3 == 0)
      engine.add(random_request(completions + i, vocab, 1 + random() % 60,
                                1 + random() % answer_tokens, random()));
    for (uint32_t steps = random() % 3; steps > 0; --steps) engine.step(collector);
  }
  run_all(engine, collector);
  std::set<Answer> unique;
  Result result{.configurations = completions};
  for (int i = 0; i < completions; ++i) {
    const Answer& answer = collector.answers.at(i);
    unique.insert(answer);
    result.largest_difference =
        std::max(result.largest_difference, largest_difference(collector.answers.at(0), answer));
  }
  result.unique = unique.size();
  return result;
}

struct AxisVerdict {
  bool passed;
  std::string text;
};

AxisVerdict verdict_of(const Axis& axis, const Result& ours, const Result& baseline) {
  const bool equal = ours.unique == 1 && ours.largest_difference == 0;
  const bool tried = !(axis.expects_cached && ours.counts.cached == 0) &&
                     !(axis.expects_preempted && ours.counts.preempted == 0) &&
                     !(axis.expects_drafts && ours.counts.accepted == 0) &&
                     !(axis.expects_ahead && ours.counts.ahead == 0) &&
                     ours.counts.most_live >= axis.expects_live;
  const std::string live =
      axis.expects_live ? fmt::format(", {} live at once", ours.counts.most_live) : "";
  if (axis.promises_nothing && ours.unique == 1) return {false, "FAILED: nothing varies" + live};
  if (!axis.promises_nothing && !equal) return {false, "FAILED: bits differ" + live};
  if (baseline.unique == 1) return {false, "FAILED: the control cannot tell" + live};
  if (!tried) return {false, "FAILED: it did not happen" + live};
  return {true, (axis.promises_nothing ? "varies, as its identity says" : "same bits") + live};
}

class Report {
 public:
  explicit Report(bool json) : json_(json) {
    if (!json_)
      fmt::print("{:24} {:>6} {:>8} {:>12}   {:>8} {:>12}   {}\n", "axis", "runs", "unique",
                 "largest dp", "control", "largest dp", "verdict");
  }
  void add(const Axis& axis, const Result& ours, const Result& baseline) {
    const auto [passed, verdict] = verdict_of(axis, ours, baseline);
    passed_ &= passed;
    if (json_) {
      json::Value v;
      v.set("axis", axis.name);
      v.set("configurations", ours.configurations);
      v.set("unique", static_cast<int64_t>(ours.unique));
      v.set("largest_probability_difference", ours.largest_difference);
      v.set("control_unique", static_cast<int64_t>(baseline.unique));
      v.set("control_largest_probability_difference", baseline.largest_difference);
      v.set("control", axis.control_differs ? "control" : "foil");
      if (axis.promises_nothing) v.set("must_differ", true);
      v.set("most_live", ours.counts.most_live);
      v.set("passed", passed);
      rows_.push_back(std::move(v));
    } else {
      fmt::print("{:24} {:6} {:8} {:12.2g}   {:8} {:12.2g}   {}\n", axis.name, ours.configurations,
                 ours.unique, ours.largest_difference, baseline.unique, baseline.largest_difference,
                 verdict);
      std::fflush(stdout);
    }
  }
  bool passed() const { return passed_; }
  json::Array& rows() { return rows_; }

 private:
  bool json_, passed_ = true;
  json::Array rows_;
};

// Whether the audit is of the bundled model, which somebody wants to see hold, fast.
bool is_quick(const AuditFlags& flags) {
  return flags.model.options.model.empty() && !flags.full;
}

Probes probes_of(const AuditFlags& flags) {
  if (!flags.only_answers.empty())
    return {.prompts = {flags.only_answers.begin() + 1, flags.only_answers.end()},
            .answer_tokens = flags.only_answers.front()};
  if (is_quick(flags)) return {.prompts = {1, 33, 129}, .answer_tokens = 8};
  return {.prompts = {1, 2, 31, 33, 64, 127, 129, 200}, .answer_tokens = flags.full ? 48 : 12};
}

// Every axis, and at last many completions of one prompt, each beside the baseline.
void compare(AuditRunner& runner, const AuditFlags& flags, const Schedule& base,
             const DecoderSpec& spec, Report& report) {
  const std::vector<Axis> axes = make_axes(flags.full, base, spec);
  size_t runs = 2, done = 0;  // of schedules; two for the completions
  for (const Axis& axis : axes) runs += 2 * axis.schedules.size();
  ProgressLine progress(!flags.model.json);
  const auto show = [&](size_t more) {
    done += more;
    progress.show_share("audit", static_cast<double>(done), static_cast<double>(runs), "runs");
  };
  for (const Axis& axis : axes) {
    show(0);
    const Result ours = run_axis(runner, axis, false);
    show(axis.schedules.size());
    const Result baseline = run_axis(runner, axis, true);
    show(axis.schedules.size());
    progress.clear();
    report.add(axis, ours, baseline);
  }
  const int otherwise = flags.full ? 1000 : is_quick(flags) ? 40 : 200;
  const int completions = flags.completions ? flags.completions : otherwise;
  show(0);
  const Result ours = run_classic(runner, base, base.model.arithmetic, completions);
  const Result baseline = run_classic(runner, base, "control", completions);
  progress.clear();
  report.add({fmt::format("{} completions", completions), {}, true}, ours, baseline);
}

// Positions of what is audited: they are part of what a model with longrope is.
constexpr int kContext = 512;

int run_audit(const AuditFlags& flags) {
  if (!flags.trainer.is_on && !flags.trainer.against.empty())
    fail_usage("--against says what stands beside the trainer: expected --trainer, found none");
  if (flags.trainer.is_on)
    return audit_trainer(resolved(flags.model), flags.trainer, flags.model.json);
  const Timer timer;
  Schedule base;
  base.model = resolved(flags.model);
  base.model.context = kContext;
  if (base.model.arithmetic.starts_with("control") && flags.only_answers.empty())
    fail_usage("the audit compares an arithmetic with control; control itself promises nothing");
  if (flags.completions < 0 || flags.completions > 1'000'000)
    fail_usage("expected 1 to 1000000 completions, or 0, found {}", flags.completions);
  AuditRunner runner(probes_of(flags));
  const std::string identity = runner.model(base.model)->identity();
  const DecoderSpec spec = runner.model(base.model)->spec();  // the runs open other models
  base.engine.scheduler.max_num_seqs = 64;
  base.engine.scheduler.max_num_batched_tokens = 256;
  base.engine.scheduler.max_model_len = std::min(kContext, spec.max_positions);
  base.engine.prompt_logprobs = true;
  if (!flags.only_answers.empty()) {
    fmt::print("{}\n", json::dump(to_json(runner.run(base))));
    return 0;
  }
  const std::string made = made_weights(base.model);
  Report report(flags.model.json);
  compare(runner, flags, base, spec, report);
  if (flags.model.json) {
    json::Value v;
    v.set("identity", identity);
    if (!made.empty()) v.set("weights", made);
    v.set("passed", report.passed());
    v.set("seconds", timer.seconds());
    v.set("axes", std::move(report.rows()));
    fmt::print("{}\n", json::dump(v, 2));
  } else {
    fmt::print("{}  {}  {:.1f} s\n", report.passed() ? "PASSED" : "FAILED", identity,
               timer.seconds());
    if (!made.empty()) fmt::print("weights: {}\n", made);
  }
  return report.passed() ? 0 : 1;
}

}  // namespace

void add_audit(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("audit",
                                         "Check the guarantee on a model: many schedules must give "
                                         "one hash, and a conventional baseline must not");
  auto flags = std::make_shared<AuditFlags>();
  add_model_flags(*command, flags->model);
  command->add_flag("--full", flags->full,
                    "More configurations, longer answers, 256 live sequences, 1000 completions: 2 "
                    "to 3 minutes of processor time for the preset tiny");
  command
      ->add_option("--completions", flags->completions,
                   "Completions of one prompt; 0 means 200, 1000 with --full, or 40 where neither "
                   "that nor a MODEL is named")
      ->capture_default_str();
  command->add_flag("--trainer", flags->trainer.is_on,
                    "Compare the sampler with the trainer instead: the whole distribution at every "
                    "position of answers, by hash, and the KL");
  command->add_option("--against", flags->trainer.against,
                      "Other trainers beside it: transformers (or transformers:bfloat16), a Python "
                      "function FILE.py:NAME of token ids that returns logits, or a directory of "
                      "logits");
  command->add_option("--texts", flags->trainer.texts, "Answers that --trainer compares")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--only-answers", flags->only_answers)->group("");  // for the second process
  show_first(*command, {{"What is checked",
                         {"--full", "--completions", "--trainer", "--against", "--texts",
                          "--load-format", "--json"}},
                        {"Speed", {"--device", "--threads", "--tensor-parallel-size"}}});
  command->callback([&action, flags] { action = [flags] { return run_audit(*flags); }; });
}

}  // namespace invar::cli
