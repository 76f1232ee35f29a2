#include "speculate_host_time.h"

#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "base/timer.h"
#include "median.h"
#include "session/instance.h"
#include "speculative/replay.h"

namespace invar::cli {

namespace {

constexpr int kSequences = 64, kNodes = 8, kAnswer = 48, kPromptTokens = 40;

struct Keep final : OutputSink {
  void on_token(const TokenOutput& output) override {
    answers[output.request].push_back(output.token);
  }
  std::map<int64_t, std::vector<int32_t>> answers;
};

void add_requests(Engine& engine, int32_t vocab) {
  for (int i = 0; i < kSequences; ++i) {
    Request request{.id = i, .hash_logits = false};
    for (int t = 0; t < kPromptTokens; ++t)
      request.prompt.edit().push_back((i * 31 + t * 7 + 1) % vocab);
    request.params.temperature = 0;
    request.params.max_tokens = kAnswer;
    engine.add(std::move(request));
  }
}

EngineOptions options() {
  EngineOptions options{.prefix_caching = false};
  options.scheduler.max_num_seqs = kSequences;
  options.scheduler.max_num_batched_tokens = kSequences * (kPromptTokens + 1 + kNodes);
  options.scheduler.max_model_len = kPromptTokens + kAnswer + 1;
  return options;
}

// The steps in which all sequences decode, with drafts if there is a proposer: seconds of the
// host's parts, by name and in all, and between the operations.
struct HostTimes {
  std::map<std::string_view, std::vector<double>> parts;
  std::vector<double> all, between;

  void add(const OperationTimes& times, double step) {
    double host = 0;
    for (const OperationTimes::Entry& entry : times.entries()) {
      step -= entry.seconds;
      if (!kHostParts.contains(entry.name)) continue;
      host += entry.seconds;
      parts[entry.name].push_back(entry.seconds);
    }
    all.push_back(host);
    between.push_back(step);
  }
};

// `replay`: what drafts, or null.
HostTimes host_times(const std::shared_ptr<Model>& model, const ReplayOptions* replay,
                     const Keep& plain, Keep& sink) {
  const int drafts = replay ? kSequences : 0;
  InstanceOptions instance_options{.model = model->options(), .engine = options()};
  if (replay)
    instance_options.proposer = [&](Model&) {
      return std::make_unique<Replay>(*replay, plain.answers);
    };
  Instance instance(instance_options, model);
  Engine& engine = instance.engine();
  add_requests(engine, model->spec().vocab);
  HostTimes host;
  while (engine.has_work()) {
    OperationTimes times;
    engine.set_times(&times);
    const Timer timer;
    engine.step(sink);
    const double seconds = timer.seconds();
    const StepStats& step = engine.last_step();
    if (step.sequences == kSequences && step.drafts == drafts && step.work.prompt_rows == 0)
      host.add(times, seconds);
  }
  return host;
}

}  // namespace

namespace {

void print(std::string_view what, const HostTimes& host) {
  fmt::print("{} sequences, {}: {:.0f} us of the host a step (medians of {}):", kSequences, what,
             1e6 * median(host.all), host.all.size());
  for (const std::string_view part : {kHostParts.plan, kHostParts.draft, kHostParts.rows,
                                      kHostParts.tables, kHostParts.commit, kHostParts.emit})
    fmt::print(" {} {:.0f}", part, 1e6 * median(host.parts.at(part)));
  fmt::print("; beside them {:.0f} us between operations\n", 1e6 * median(host.between));
}

}  // namespace

int print_host_time(const std::shared_ptr<Model>& model) {
  Keep plain;
  print("no drafts", host_times(model, nullptr, {}, plain));
  for (const int branches : {1, 2}) {
    const ReplayOptions replay{.num_speculative_tokens = kNodes / branches,
                               .right = 0.7,
                               .branches = branches,
                               .vocab = model->spec().vocab};
    Keep drafted;
    print(fmt::format("{} of {} nodes", branches == 1 ? "chains" : "trees", kNodes),
          host_times(model, &replay, plain, drafted));
    if (drafted.answers != plain.answers) fail("replayed drafts changed an answer");
  }
  return 0;
}

}  // namespace invar::cli
