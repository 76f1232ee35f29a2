// invar audit: the promise tried on the user's own model. The same requests run under many
// schedules; hashes of all logits of all steps are compared, never text. Beside each axis stands
// the conventional arithmetic, which must fail where a conventional engine would: a check that
// cannot fail is no check.
#include <fmt/format.h>

#include <cmath>
#include <random>
#include <set>

#include "audit_runs.h"
#include "base/error.h"
#include "base/timer.h"
#include "device/cuda_device.h"
#include "kernels/select.h"

namespace invar::cli {

namespace {

struct AuditFlags {
  ModelFlags model;
  bool full = false;
  int completions = 0;   // of the classic; 0: 200, with --full 1000
  int only_answers = 0;  // print the probes' answers of this many tokens and nothing else
};

// The options with another arithmetic. The foil runs on the CPU, whatever the device: it is there
// to show that a conventional engine's bits move.
ModelOptions with_arithmetic(ModelOptions options, const std::string& arithmetic) {
  options.arithmetic = arithmetic;
  if (arithmetic == "control") options.device = "cpu";
  return options;
}

struct Axis {
  std::string name;
  std::vector<Schedule> schedules;
  bool control_differs;  // whether a conventional engine's bits depend on this axis
  // What the runs of an axis must have seen, else it has tried nothing.
  bool expects_cached = false, expects_preempted = false;
  int expects_live = 0;
};

// Memory for the longest sequence `times` over.
int64_t pages_for(const DecoderSpec& spec, const Schedule& base, int times) {
  const int places = base.engine.page_places;
  const int64_t pages = (base.engine.scheduler.max_model_len + places - 1) / places;
  return times * pages * KvStorage::page_bytes(spec.layers, places, spec.kv_heads, spec.head_dim);
}

// Every axis at once, as the seed has it: who is computed when, where, by whom, beside whom.
Schedule random_schedule(const Schedule& base, const DecoderSpec& spec, uint32_t seed, int live) {
  std::mt19937 random(9000 + seed);
  const auto below = [&](size_t n) { return static_cast<int>(random() % n); };
  Schedule s = base;
  s.label = fmt::format("schedule {}", seed);
  s.engine.page_places = 32 << below(3);
  s.engine.prefix_caching = below(2);
  s.rounds = s.engine.prefix_caching ? 1 + below(2) : 1;
  if (below(3) == 0) s.engine.kv_bytes = pages_for(spec, base, std::max(2, live / 16));
  SchedulerOptions& o = s.engine.scheduler;
  o.policy = scheduler_names()[seed % scheduler_names().size()];
  o.max_num_seqs = live + below(live);
  // Some compute prompts whole.
  o.max_num_batched_tokens = std::max(o.max_num_seqs + below(400), o.max_model_len * below(2));
  if (o.policy != "sarathi" && o.policy != "simple-chunking")
    o.max_num_batched_tokens = std::max(o.max_num_batched_tokens, o.max_model_len);
  std::vector<std::string> sets;
  for (const std::string& set : instruction_sets())
    if (is_supported(set) && set != "scalar") sets.push_back(set);
  if (base.model.device == "cpu" && !sets.empty())
    s.model.instruction_set = sets[static_cast<size_t>(below(sets.size()))];
  s.model.threads = 1 + below(3);
  for (int most = std::min(attention_output_runs(spec), down_runs(spec));
       s.model.ranks * 2 <= most && below(2);)
    s.model.ranks *= 2;
  if (spec.layers > 1 && below(2)) s.model.layer_cuts = {1 + below(spec.layers - 1)};
  s.neighbours = live + 40;
  s.at_once = live + 20;
  s.arrival = seed;
  if (below(4) == 0) s.trees = seed;
  return s;
}

std::vector<Axis> make_axes(const AuditFlags& flags, const Schedule& base,
                            const DecoderSpec& spec) {
  std::vector<Axis> axes;
  const auto vary = [&](Axis& axis, std::string label) -> Schedule& {
    axis.schedules.push_back(base);
    axis.schedules.back().label = std::move(label);
    return axis.schedules.back();
  };

  Axis batch{"batch and place", {}, true};
  vary(batch, "one request at a time").one_at_a_time = true;
  for (const int n :
       flags.full ? std::vector<int>{0, 1, 3, 7, 15, 31, 56} : std::vector<int>{0, 7, 56}) {
    Schedule& s = vary(batch, fmt::format("{} neighbours", n));
    s.neighbours = n;
    s.arrival = n;
  }
  axes.push_back(std::move(batch));

  Axis chunks{"chunk cuts", {}, true};
  for (const int rows : flags.full ? std::vector<int>{1, 2, 15, 17, 32, 100, 300, 1024}
                                   : std::vector<int>{9, 40, 300}) {
    Schedule& s = vary(chunks, fmt::format("steps of {} rows", rows));
    s.engine.scheduler.max_num_batched_tokens = rows;
    s.engine.scheduler.max_num_seqs = std::min(rows, s.engine.scheduler.max_num_seqs);
  }
  axes.push_back(std::move(chunks));

  Axis arrival{"arrival order", {}, true};
  for (uint32_t seed = 1; seed <= (flags.full ? 8u : 3u); ++seed)
    vary(arrival, fmt::format("order {}", seed)).arrival = seed;
  axes.push_back(std::move(arrival));

  Axis threads{"threads", {}, false};
  for (const int n : {1, 2, 3}) vary(threads, fmt::format("{} threads", n)).model.threads = n;
  axes.push_back(std::move(threads));

  const bool on_gpu = base.model.device != "cpu";
  Axis sets{"instruction set", {}, false};
  for (const std::string& set : instruction_sets())
    if (is_supported(set) && (flags.full || set != "scalar"))
      vary(sets, set).model.instruction_set = set;
  if (!on_gpu) axes.push_back(std::move(sets));

  Axis devices{"device", {}, false};
  vary(devices, "cpu").model.device = "cpu";
  for (int i = 0; i < cuda_device_count(); ++i) {
    if (!cuda_device_is_usable(i)) continue;
    Schedule& s = vary(devices, fmt::format("cuda:{}", i));
    s.model.device = s.label;
    s.model.instruction_set = "auto";
  }
  if (devices.schedules.size() > 1) axes.push_back(std::move(devices));

  Axis pages{"page size", {}, false};
  for (const int places : {32, 64, 128})
    vary(pages, fmt::format("{} places", places)).engine.page_places = places;
  axes.push_back(std::move(pages));

  Axis ranks{"ranks", {}, true};
  for (int size = 1; size <= std::min(attention_output_runs(spec), down_runs(spec)); size *= 2)
    vary(ranks, fmt::format("{} ranks", size)).model.ranks = size;
  axes.push_back(std::move(ranks));

  Axis cuts{"layer cuts", {}, false};
  for (int cut = 1; cut < spec.layers; cut += flags.full ? 1 : 2)
    vary(cuts, fmt::format("cut at {}", cut)).model.layer_cuts = {cut};
  axes.push_back(std::move(cuts));

  Axis policies{"scheduling policy", {}, true};
  for (const std::string& policy : scheduler_names()) {
    Schedule& s = vary(policies, policy);
    s.engine.scheduler.policy = policy;
    // Some compute prompts whole.
    s.engine.scheduler.max_num_batched_tokens = s.engine.scheduler.max_model_len;
    s.neighbours = 7;
    s.arrival = 7;
  }
  axes.push_back(std::move(policies));

  Axis cache{"prefix cache", {}, true, true};
  vary(cache, "off").engine.prefix_caching = false;
  vary(cache, "cold");
  vary(cache, "warm").rounds = 2;
  Schedule& evicted = vary(cache, "evicted");
  evicted.rounds = 2;
  evicted.neighbours = 20;
  evicted.engine.kv_bytes = pages_for(spec, base, 1);
  axes.push_back(std::move(cache));

  Axis preemption{"preemption", {}, true, false, true};
  vary(preemption, "room for all");
  for (const bool caching : {false, true}) {
    Schedule& s = vary(preemption, caching ? "little room" : "little room, no cache");
    s.engine.prefix_caching = caching;
    s.engine.kv_bytes = pages_for(spec, base, 1);
  }
  axes.push_back(std::move(preemption));

  Axis trees{"draft trees", {}, true};
  vary(trees, "plain");
  for (uint32_t seed = 1; seed <= (flags.full ? 8u : 2u); ++seed)
    for (const int places : flags.full ? std::vector<int>{32, 64, 128} : std::vector<int>{32}) {
      Schedule& s = vary(trees, fmt::format("trees {}, pages of {}", seed, places));
      s.trees = seed;
      s.engine.page_places = places;
    }
  axes.push_back(std::move(trees));

  const int live = flags.full ? 256 : 32;
  Axis together{"all together", {}, true, true, true, live};
  for (uint32_t seed = 1; seed <= (flags.full ? 20u : 5u); ++seed)
    together.schedules.push_back(random_schedule(base, spec, seed, live));
  axes.push_back(std::move(together));

  Axis restart{"restart", {}, false};
  vary(restart, "this process");
  vary(restart, "another process").elsewhere = true;
  axes.push_back(std::move(restart));
  return axes;
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

Result run_axis(AuditRunner& runner, const Axis& axis, const std::string& arithmetic) {
  Result result;
  std::map<int64_t, std::set<Answer>> seen;
  for (Schedule schedule : axis.schedules) {
    schedule.model = with_arithmetic(schedule.model, arithmetic);
    for (auto& [id, answer] : runner.run(schedule)) {
      for (const Answer& other : seen[id])
        result.largest_difference =
            std::max(result.largest_difference, largest_difference(other, answer));
      seen[id].insert(answer);
    }
    ++result.configurations;
    result.counts.cached += runner.counts().cached;
    result.counts.preempted += runner.counts().preempted;
    result.counts.most_live = std::max(result.counts.most_live, runner.counts().most_live);
  }
  for (const auto& [id, answers] : seen) result.unique = std::max(result.unique, answers.size());
  return result;
}

// He et al.'s test: one prompt answered many times, greedily, among random neighbours.
Result run_classic(AuditRunner& runner, const Schedule& base, const std::string& arithmetic,
                   int completions) {
  Model& model = runner.model(with_arithmetic(base.model, arithmetic));
  const int vocab = model.spec().vocab, answer_tokens = runner.answer_tokens();
  EngineOptions engine_options = base.engine;
  engine_options.prefix_caching = false;  // every completion is computed
  Engine engine(model, engine_options);
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

class Report {
 public:
  explicit Report(bool json) : json_(json) {
    if (!json_)
      fmt::print("{:24} {:>6} {:>8} {:>12}   {:>8} {:>12}   {}\n", "axis", "runs", "unique",
                 "largest dp", "control", "largest dp", "verdict");
  }
  void add(const Axis& axis, const Result& ours, const Result& foil) {
    const std::string& name = axis.name;
    const bool control_differs = axis.control_differs;
    const bool equal = ours.unique == 1 && ours.largest_difference == 0;
    const bool can_fail = !control_differs || foil.unique > 1;
    const bool tried = !(axis.expects_cached && ours.counts.cached == 0) &&
                       !(axis.expects_preempted && ours.counts.preempted == 0) &&
                       ours.counts.most_live >= axis.expects_live;
    passed_ &= equal && can_fail && tried;
    std::string verdict = !equal      ? "FAILED: bits differ"
                          : !can_fail ? "FAILED: the control cannot tell"
                          : !tried    ? "FAILED: it did not happen"
                                      : "same bits";
    if (axis.expects_live) verdict += fmt::format(", {} live at once", ours.counts.most_live);
    if (json_) {
      json::Value v;
      v.set("axis", name);
      v.set("configurations", ours.configurations);
      v.set("unique", static_cast<int64_t>(ours.unique));
      v.set("largest_probability_difference", ours.largest_difference);
      v.set("control_unique", static_cast<int64_t>(foil.unique));
      v.set("control_largest_probability_difference", foil.largest_difference);
      v.set("control_must_differ", control_differs);
      v.set("most_live", ours.counts.most_live);
      v.set("passed", equal && can_fail && tried);
      rows_.push_back(std::move(v));
    } else {
      fmt::print("{:24} {:6} {:8} {:12.2g}   {:8} {:12.2g}   {}\n", name, ours.configurations,
                 ours.unique, ours.largest_difference, foil.unique, foil.largest_difference,
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

int run_audit(const AuditFlags& flags) {
  const Timer timer;
  Schedule base;
  base.model = resolved(flags.model);
  if (base.model.arithmetic == "control" && !flags.only_answers)
    fail_usage("the audit compares an arithmetic with control; control itself promises nothing");
  if (flags.completions < 0 || flags.completions > 1'000'000)
    fail_usage("expected 1 to 1000000 completions, or 0, found {}", flags.completions);
  base.engine.scheduler.max_num_seqs = 64;
  base.engine.scheduler.max_num_batched_tokens = 256;
  base.engine.scheduler.max_model_len = 512;
  const int answer_tokens = flags.only_answers ? flags.only_answers : flags.full ? 48 : 12;
  AuditRunner runner(answer_tokens);
  std::string identity;
  DecoderSpec spec;
  {
    const Model& model = runner.model(base.model);
    identity = model.identity();
    spec = model.spec();
    base.engine.scheduler.max_model_len = std::min(512, spec.max_positions);
  }
  if (flags.only_answers) {
    fmt::print("{}\n", json::dump(to_json(runner.run(base))));
    return 0;
  }
  const std::string arithmetic = base.model.arithmetic, made = made_weights(base.model);
  ProgressLine progress(!flags.model.json);
  Report report(flags.model.json);
  for (const Axis& axis : make_axes(flags, base, spec)) {
    progress.show(fmt::format("{} ...", axis.name));
    const Result ours = run_axis(runner, axis, arithmetic);
    const Result foil = run_axis(runner, axis, "control");
    progress.clear();
    report.add(axis, ours, foil);
  }
  const int completions = flags.completions ? flags.completions : flags.full ? 1000 : 200;
  progress.show("one prompt many times ...");
  const Result ours = run_classic(runner, base, arithmetic, completions);
  const Result foil = run_classic(runner, base, "control", completions);
  progress.clear();
  report.add({fmt::format("{} completions", completions), {}, true}, ours, foil);

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
  CLI::App* command = app.add_subcommand(
      "audit",
      "Try the promise on a model: many schedules, one hash; a conventional foil beside it");
  auto flags = std::make_shared<AuditFlags>();
  add_model_flags(*command, flags->model);
  command->add_flag("--full", flags->full,
                    "More configurations, longer answers, 256 live sequences, 1000 completions: "
                    "for the built-in model 2 to 3 minutes of processor time");
  command
      ->add_option("--completions", flags->completions,
                   "Answers to one prompt; 0: 200, with --full 1000")
      ->capture_default_str();
  command->add_option("--only-answers", flags->only_answers)->group("");  // for the second process
  command->callback([&action, flags] { action = [flags] { return run_audit(*flags); }; });
}

}  // namespace invar::cli
