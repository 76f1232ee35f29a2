// invar audit: the promise tried on the user's own model. The same requests run under many
// schedules; hashes of all logits of all steps are compared, never text. Beside each axis stands
// the conventional arithmetic, which must fail where a conventional engine would: a check that
// cannot fail is no check.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "base/timer.h"
#include "command.h"
#include "device/cuda_device.h"
#include "kernels/select.h"

namespace invar::cli {

namespace {

struct AuditFlags {
  ModelFlags model;
  bool full = false;
  int completions = 0;  // of the classic; 0: 200, with --full 1000
};

// What a schedule is allowed to choose.
struct Schedule {
  std::string label;
  ModelOptions model;
  EngineOptions engine;
  int neighbours = 0;    // random requests beside the probes
  uint32_t arrival = 0;  // seed of the order of arrival; 0: as listed
  bool one_at_a_time = false;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<double> probabilities;  // of each token
  Digest hash{};
  bool operator<(const Answer& other) const {
    return std::tie(tokens, hash) < std::tie(other.tokens, other.hash);
  }
};

class Collector final : public OutputSink {
 public:
  void on_token(const TokenOutput& output) override {
    Answer& answer = answers[output.request];
    answer.tokens.push_back(output.token);
    if (output.logprobs) answer.probabilities.push_back(std::exp(double{output.logprobs->logprob}));
    answer.hash = output.logits_hash;
  }
  std::map<int64_t, Answer> answers;
};

Request random_request(int64_t id, int vocab, int prompt, int answer, uint32_t seed) {
  std::mt19937 random(seed);
  Request request{.id = id};
  for (int i = 0; i < prompt; ++i) request.prompt.push_back(static_cast<int32_t>(random() % vocab));
  request.params.max_tokens = answer;
  request.params.temperature = seed % 2 ? 0.0 : 0.8;  // greedy and sampled by turns
  request.params.seed = seed;
  request.params.logprobs = 0;
  return request;
}

// The requests whose bits are compared: short and long, across the edges of leaves, pages and
// splits.
std::vector<Request> probes(int vocab, int answer) {
  std::vector<Request> all;
  for (const int prompt : {1, 2, 31, 33, 64, 127, 129, 200})
    all.push_back(random_request(std::ssize(all), vocab, prompt, answer, 100 + prompt));
  return all;
}

void run_all(Engine& engine, OutputSink& sink) {
  while (engine.step(sink)) {
  }
}

std::map<int64_t, Answer> run(const Schedule& schedule, int answer_tokens) {
  Model model(schedule.model);
  Engine engine(model, schedule.engine);
  std::vector<Request> requests = probes(model.spec().vocab, answer_tokens);
  const int64_t count = std::ssize(requests);
  for (int i = 0; i < schedule.neighbours; ++i)
    requests.push_back(random_request(1000 + i, model.spec().vocab, 1 + (i * 37) % 90,
                                      1 + (i * 13) % answer_tokens, 7000 + i));
  if (schedule.arrival) {
    std::mt19937 random(schedule.arrival);
    std::shuffle(requests.begin(), requests.end(), random);
  }
  Collector collector;
  std::mt19937 pace(schedule.arrival);
  for (Request& request : requests) {
    engine.add(std::move(request));
    if (schedule.one_at_a_time) run_all(engine, collector);
    // Late arrivals meet requests that are already being answered.
    for (uint32_t i = schedule.arrival ? pace() % 4 : 0; i > 0; --i) engine.step(collector);
  }
  run_all(engine, collector);
  if (const std::string broken = engine.check_integrity(); !broken.empty()) fail("{}", broken);
  std::erase_if(collector.answers, [&](const auto& entry) { return entry.first >= count; });
  return collector.answers;
}

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
};

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

  Axis restart{"restart", {}, false};
  vary(restart, "first start");
  vary(restart, "second start");
  axes.push_back(std::move(restart));
  return axes;
}

struct Result {
  int configurations = 0;
  size_t unique = 1;              // different answers to one probe, the worst probe
  double largest_difference = 0;  // of a token's probability, up to the first different token
};

Result run_axis(const Axis& axis, const std::string& arithmetic, int answer_tokens) {
  Result result;
  std::map<int64_t, std::set<Answer>> seen;
  for (Schedule schedule : axis.schedules) {
    schedule.model = with_arithmetic(schedule.model, arithmetic);
    for (auto& [id, answer] : run(schedule, answer_tokens)) {
      for (const Answer& other : seen[id])
        for (size_t i = 0; i < std::min(other.tokens.size(), answer.tokens.size()); ++i) {
          if (other.tokens[i] != answer.tokens[i]) break;
          result.largest_difference =
              std::max(result.largest_difference,
                       std::fabs(other.probabilities[i] - answer.probabilities[i]));
        }
      seen[id].insert(answer);
    }
    ++result.configurations;
  }
  for (const auto& [id, answers] : seen) result.unique = std::max(result.unique, answers.size());
  return result;
}

// He et al.'s test: one prompt answered many times, greedily, among random neighbours.
Result run_classic(const Schedule& base, const std::string& arithmetic, int completions,
                   int answer_tokens) {
  Model model(with_arithmetic(base.model, arithmetic));
  Engine engine(model, base.engine);
  Collector collector;
  std::mt19937 random(1);
  const Request one = random_request(0, model.spec().vocab, 40, answer_tokens, 41);
  for (int i = 0; i < completions; ++i) {
    Request copy = one;
    copy.id = i;
    engine.add(std::move(copy));
    if (random() % 3 == 0)
      engine.add(random_request(completions + i, model.spec().vocab, 1 + random() % 60,
                                1 + random() % answer_tokens, random()));
    for (uint32_t steps = random() % 3; steps > 0; --steps) engine.step(collector);
  }
  run_all(engine, collector);
  std::set<Answer> unique;
  Result result{.configurations = completions};
  const Answer& first = collector.answers.at(0);
  for (int i = 0; i < completions; ++i) {
    const Answer& answer = collector.answers.at(i);
    unique.insert(answer);
    for (size_t t = 0; t < answer.tokens.size() && answer.tokens[t] == first.tokens[t]; ++t)
      result.largest_difference = std::max(
          result.largest_difference, std::fabs(answer.probabilities[t] - first.probabilities[t]));
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
  void add(const std::string& name, const Result& ours, const Result& foil, bool control_differs) {
    const bool equal = ours.unique == 1 && ours.largest_difference == 0;
    const bool can_fail = !control_differs || foil.unique > 1;
    passed_ &= equal && can_fail;
    const char* verdict = !equal      ? "FAILED: bits differ"
                          : !can_fail ? "FAILED: the control cannot tell"
                                      : "same bits";
    if (json_) {
      json::Value v;
      v.set("axis", name);
      v.set("configurations", ours.configurations);
      v.set("unique", static_cast<int64_t>(ours.unique));
      v.set("largest_probability_difference", ours.largest_difference);
      v.set("control_unique", static_cast<int64_t>(foil.unique));
      v.set("control_largest_probability_difference", foil.largest_difference);
      v.set("control_must_differ", control_differs);
      v.set("passed", equal && can_fail);
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
  if (base.model.arithmetic == "control")
    fail_usage("the audit compares an arithmetic with control; control itself promises nothing");
  base.engine.scheduler.max_num_seqs = 64;
  base.engine.scheduler.max_num_batched_tokens = 256;
  base.engine.scheduler.max_model_len = 512;
  const int answer_tokens = flags.full ? 48 : 12;
  std::string identity;
  DecoderSpec spec;
  {
    const Model model(base.model);
    identity = model.identity();
    spec = model.spec();
    base.engine.scheduler.max_model_len = std::min(512, spec.max_positions);
  }
  const std::string arithmetic = base.model.arithmetic;
  ProgressLine progress(!flags.model.json);
  Report report(flags.model.json);
  for (const Axis& axis : make_axes(flags, base, spec)) {
    progress.show(fmt::format("{} ...", axis.name));
    const Result ours = run_axis(axis, arithmetic, answer_tokens);
    const Result foil = run_axis(axis, "control", answer_tokens);
    progress.clear();
    report.add(axis.name, ours, foil, axis.control_differs);
  }
  const int completions = flags.completions ? flags.completions : flags.full ? 1000 : 200;
  progress.show("one prompt many times ...");
  const Result ours = run_classic(base, arithmetic, completions, answer_tokens);
  const Result foil = run_classic(base, "control", completions, answer_tokens);
  progress.clear();
  report.add(fmt::format("{} completions", completions), ours, foil, true);

  if (flags.model.json) {
    json::Value v;
    v.set("identity", identity);
    v.set("passed", report.passed());
    v.set("seconds", timer.seconds());
    v.set("axes", std::move(report.rows()));
    fmt::print("{}\n", json::dump(v, 2));
  } else {
    fmt::print("{}  {}  {:.1f} s\n", report.passed() ? "PASSED" : "FAILED", identity,
               timer.seconds());
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
  command->add_flag("--full", flags->full, "More configurations, longer answers, 1000 completions");
  command
      ->add_option("--completions", flags->completions,
                   "Answers to one prompt; 0: 200, with --full 1000")
      ->capture_default_str();
  command->callback([&action, flags] { action = [flags] { return run_audit(*flags); }; });
}

}  // namespace invar::cli
