// Requests that a benchmark times: prompts of one length, answers of one length.
#include <algorithm>

#include "base/timer.h"
#include "bench_model.h"
#include "bench_prompt.h"
#include "kv/cell_placement.h"

namespace invar::cli {

namespace {

class Ignore final : public OutputSink {
 public:
  void on_token(const TokenOutput&) override {}
};

}  // namespace

Seconds run_requests(const std::shared_ptr<Model>& model, int sequences, int prompt, int answer,
                     int max_rows, std::optional<bool> async_scheduling, OperationTimes* times) {
  EngineOptions options;
  options.async_scheduling = async_scheduling;
  options.scheduler.max_num_seqs = sequences;
  // A prompt is cut where states move: it needs rows up to there.
  const int prompt_rows = has_states(model->spec()) ? kBoundary : 0;
  options.scheduler.max_num_batched_tokens = std::max(max_rows, sequences + prompt_rows);
  options.scheduler.max_model_len = prompt + answer;
  options.prefix_caching = false;  // the prompts of the warm run come again
  Instance instance({.model = model->options(), .engine = options}, model);
  Engine& engine = instance.engine();
  const auto submit = [&](int64_t first_id, int tokens) {
    for (int s = 0; s < sequences; ++s) {
      Request request{.id = first_id + s, .hash_logits = false};
      request.prompt = bench_prompt(s, prompt, model->spec().vocab);
      request.params.temperature = 0;
      request.params.max_tokens = tokens;
      engine.add(std::move(request));
    }
  };
  Ignore sink;
  // Warm: the same answers once, so that the kernel has given, and cleared, all memory they need. A
  // GPU's step of few rows is recorded when it comes for the second time.
  const int warm_runs = model->device().is_host() ? 1 : 2;
  for (int run = 0; run < warm_runs; ++run) {
    submit(run * sequences, answer);
    while (engine.step(sink)) {
    }
  }
  submit(warm_runs * sequences, answer);
  Seconds seconds;
  Timer timer;
  for (bool is_first = true; engine.has_work(); is_first = false) {
    engine.set_times(is_first && answer > 1 ? nullptr : times);
    const Timer step;
    engine.step(sink);
    if (engine.last_step().rows == sequences && engine.last_step().samples == sequences &&
        prompt > 1) {
      seconds.decode += step.seconds();
      seconds.idle += engine.last_step().device_idle_seconds;
      ++seconds.decode_steps;
    }
  }
  seconds.total = timer.seconds();
  return seconds;
}

}  // namespace invar::cli
