#include "speculate_host_time.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/timer.h"
#include "median.h"
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
    for (int t = 0; t < kPromptTokens; ++t) request.prompt.push_back((i * 31 + t * 7 + 1) % vocab);
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

// Seconds beside the operations, of each step in which all sequences draft.
std::vector<double> host_seconds(Model& model, std::unique_ptr<Proposer> proposer) {
  Engine engine(model, options(), nullptr, std::move(proposer));
  add_requests(engine, model.spec().vocab);
  Keep sink;
  std::vector<double> seconds;
  while (engine.has_work()) {
    OperationTimes times;
    engine.set_times(&times);
    const Timer timer;
    engine.step(sink);
    double host = timer.seconds();
    for (const OperationTimes::Entry& entry : times.entries()) host -= entry.seconds;
    const StepStats& step = engine.last_step();
    if (step.drafts == kSequences && step.work.prompt_rows == 0) seconds.push_back(host);
  }
  return seconds;
}

}  // namespace

int print_host_time(Model& model) {
  Keep plain;
  Engine engine(model, options());
  add_requests(engine, model.spec().vocab);
  while (engine.step(plain)) {
  }
  for (const int branches : {1, 2}) {
    const ReplayOptions replay{.num_speculative_tokens = kNodes / branches,
                               .right = 0.7,
                               .branches = branches,
                               .vocab = model.spec().vocab};
    const std::vector<double> seconds =
        host_seconds(model, std::make_unique<Replay>(replay, plain.answers));
    fmt::print("{} sequences, {} of {} nodes: {:.0f} us of the host a step (median of {})\n",
               kSequences, branches == 1 ? "chains" : "trees", kNodes, 1e6 * median(seconds),
               seconds.size());
  }
  return 0;
}

}  // namespace invar::cli
