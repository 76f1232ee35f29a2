#include "workload/step_samples.h"

#include <algorithm>

#include "base/timer.h"
#include "engine/executor.h"
#include "workload/load_run.h"

namespace invar {

namespace {

class StepSampler {
 public:
  StepSampler(const std::shared_ptr<Model>& model,
              const std::function<std::unique_ptr<LoadClock>()>& clock,
              const StepSampling& sampling)
      : model_(model), clock_(clock), sampling_(sampling) {
    for (const EngineOptions& engine : sampling.engines) {
      most_rows_ = std::max(most_rows_, engine.scheduler.max_num_batched_tokens);
      most_sequences_ = std::max(most_sequences_, engine.scheduler.max_num_seqs);
      longest_ = std::max(longest_, engine.scheduler.max_model_len);
    }
    most_rows_ = std::min(most_rows_, longest_);
  }

  std::vector<MeasuredStep> run() {
    chunks();
    decodes();
    for (const EngineOptions& engine : sampling_.engines) {
      std::vector<LoadRequest> requests = sampling_.requests;
      for (LoadRequest& r : requests) r.arrival = 0;
      add(engine, requests, kLoadTimes * sampling_.seconds);
    }
    return std::move(steps_);
  }

 private:
  // Until as many requests run as will, and prompts come as they end.
  static constexpr double kLoadTimes = 12;

  // The first step of an engine is left out where others follow: it fills tables and memory.
  std::vector<LoadStep> add(const EngineOptions& options, const std::vector<LoadRequest>& requests,
                            double seconds) {
    const auto server = make_instance_server(model_, options);
    const auto clock = clock_();
    std::vector<LoadStep> steps =
        run_load(*server, *clock, requests, {}, clock->now() + seconds).steps;
    if (steps.size() > 1) steps.erase(steps.begin());
    for (const LoadStep& s : steps)
      steps_.push_back({s.work, s.device > 0 ? s.device : s.end - s.begin});
    return steps;
  }

  EngineOptions options(int sequences, int rows) const {
    EngineOptions o = sampling_.engines.front();
    o.scheduler.policy = "sarathi";
    o.scheduler.max_num_seqs = sequences;
    o.scheduler.max_num_batched_tokens = std::max(rows, sequences);
    o.scheduler.max_model_len = longest_;
    return o;
  }

  // Some prompts one after the other, so that a step's host work hides as it does in a load.
  void chunks() {
    const int prompt = longest_ - 1;
    for (int rows = 1;; rows = std::min(most_rows_, rows < 64 ? 4 * rows : 2 * rows)) {
      const int length = std::min(prompt, 32 * rows);
      const auto steps =
          add(options(1, rows), std::vector<LoadRequest>(4, {.prompt = length, .answer = 1}),
              sampling_.seconds);
      rows_per_second_ = std::max(
          rows_per_second_, steps.back().work.rows() / (steps.back().end - steps.back().begin));
      if (rows == most_rows_) return;
    }
  }

  void decodes() {
    constexpr int kAnswer = 24;
    for (int sequences = 1; longest_ > 2 * kAnswer;
         sequences = std::min(most_sequences_, 4 * sequences)) {
      // Behind as much as the prompts' share of the time allows.
      const int fits = static_cast<int>(rows_per_second_ * sampling_.seconds / sequences),
                far = std::clamp(fits, 1, longest_ - kAnswer);
      for (const int context : {std::min(16, far), far})
        add(options(sequences, std::min(most_rows_, 4096)),
            std::vector<LoadRequest>(static_cast<size_t>(sequences),
                                     {.prompt = context, .answer = kAnswer}),
            3 * sampling_.seconds);
      if (sequences == most_sequences_) return;
    }
  }

  const std::shared_ptr<Model>& model_;
  const std::function<std::unique_ptr<LoadClock>()>& clock_;
  const StepSampling& sampling_;
  int most_rows_ = 1, most_sequences_ = 1, longest_ = 1;
  double rows_per_second_ = 0;
  std::vector<MeasuredStep> steps_;
};

}  // namespace

std::vector<MeasuredStep> measure_steps(const std::shared_ptr<Model>& model,
                                        const std::function<std::unique_ptr<LoadClock>()>& clock,
                                        const StepSampling& sampling) {
  return StepSampler(model, clock, sampling).run();
}

double decode_step_seconds(Model& model, int sequences, int context) {
  constexpr int kSlots = 64, kSteps = 8, kWarm = 3;
  const int blocks = (context + kSlots) / kSlots;  // of a sequence, its own token included
  Executor executor(model, {.blocks = sequences * blocks,
                            .block_size = kSlots,
                            .max_rows = sequences,
                            .max_logit_rows = sequences,
                            .cells = sequences});
  Batch batch;
  for (int s = 0; s < sequences; ++s) {
    batch.rows.push_back({.token = 0, .position = context, .sequence = s});
    batch.logit_rows.push_back(s);
    batch.sequences.push_back({.cell = s});
    auto& own = batch.sequences.back().blocks;
    for (int b = 0; b < blocks; ++b) own.push_back(s * blocks + b);
  }
  std::vector<double> seconds;
  for (int step = -kWarm; step < kSteps; ++step) {
    ForwardIo io;
    io.keep_logits = !model.device().is_host();
    const Timer timer;
    executor.run(batch, io);
    executor.decoder().execution.stream->wait();
    if (step >= 0) seconds.push_back(timer.seconds());
  }
  return percentile(std::move(seconds), 0.5);
}

}  // namespace invar
