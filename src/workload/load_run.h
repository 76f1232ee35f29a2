// A load run through an engine, and what its users see of it.
#pragma once

#include <functional>
#include <limits>
#include <vector>

#include "scheduler/step_work.h"
#include "session/instance.h"
#include "workload/load_clock.h"
#include "workload/requests.h"

namespace invar {

// A server that answers a load. Requests are known by their index.
class LoadServer {
 public:
  virtual ~LoadServer() = default;
  virtual void add(int64_t id, const LoadRequest& request) = 0;
  // One step; false when there was nothing to do.
  virtual bool step(OutputSink& sink) = 0;
  virtual bool has_work() const = 0;
  virtual const StepStats& last_step() const = 0;
};

// An instance of the model, with prompts of random tokens and answers of exactly the length asked
// for. Throws Error or UsageError as Engine does.
std::unique_ptr<LoadServer> make_instance_server(const std::shared_ptr<Model>& model,
                                                 const EngineOptions& options);
// The scheduler alone over `blocks` blocks: answers are of the length asked for and mean nothing.
// As many plans are in flight as the options say, so that a request is planned when an engine
// would. `windows`: of the model's layers.
std::unique_ptr<LoadServer> make_scheduler_server(
    const SchedulerOptions& options, int blocks, int block_size,
    std::vector<LayerWindow> windows = std::vector<LayerWindow>(1));

struct LoadRecord {
  double arrival = 0, start = 0, first_token = 0, last_token = 0;  // seconds
  int prompt = 0, answer = 0;                                      // tokens
  int restarts = 0;                                                // after preemptions
  double preempted_seconds = 0;  // between a preemption and the step that computes it again
  double preempted_at = 0;       // the last time
};

struct LoadStep {
  double begin = 0, end = 0;
  double device = 0;  // seconds by a GPU's own clock, what it waited before included; else 0
  double idle = 0;    // seconds that a GPU, or the last stage of a pipeline, waited before
  StepWork work;
  int sequences = 0, running = 0, waiting = 0, preempted = 0;
};

struct LoadResult {
  std::vector<LoadRecord> requests;
  std::vector<double> gaps;  // between consecutive tokens of an answer, all answers: the TBT
  std::vector<LoadStep> steps;
};

// Called after every step with the clock's seconds and how many requests were answered.
using AnsweredProgress = std::function<void(double seconds, int answered)>;

// Answers all `requests`, each added when it arrives, and returns when the last one is answered, or
// after the first step that ends at `until` or later. Throws Error when an answer fails.
LoadResult run_load(LoadServer& server, LoadClock& clock, const std::vector<LoadRequest>& requests,
                    const AnsweredProgress& progress = {},
                    double until = std::numeric_limits<double>::infinity());

// The value that `share` of the values do not exceed (nearest rank); 0 for no values.
double percentile(std::vector<double> values, double share);

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
};
Percentiles percentiles_of(const std::vector<double>& values);

// The summary of a run. Seconds, unless a name says otherwise.
struct LoadSummary {
  Percentiles ttft;              // arrival to first token
  Percentiles tbt;               // between tokens
  Percentiles scheduling_delay;  // arrival to the first step that computes it
  double seconds = 0;            // first arrival to last token
  double requests_per_second = 0, tokens_per_second = 0, answer_tokens_per_second = 0;
  // Batch composition, means over steps.
  double prompt_rows = 0, decode_rows = 0, running = 0, waiting = 0;
  double mixed_share = 0;  // of steps: prompts and decodes together
  // The share of the seconds in which a GPU, or the last stage of a pipeline, waited while there
  // was work (the bubbles).
  double idle_share = 0;
  int64_t steps = 0, preempted = 0;
  double prompt_step = 0, decode_step = 0;  // mean duration of steps with and without prompt rows
  double mean_step = 0;                     // of all
  double longest_gap = 0;
  double arrivals = 0;  // first arrival to last
  double answer = 0;    // mean, arrival to last token
  // The share of the rows that requests bring that is left over (least squares over the arrivals).
  // A delay need not show it: short prompts may overtake, and answers become slower first.
  double backlog_growth = 0;

  bool is_saturated() const { return backlog_growth > 0.05; }
  // Long enough that its beginning and its end do not count: 10 times the mean time of an answer.
  bool is_balanced() const { return arrivals >= 10 * answer; }
};
LoadSummary summarize(const LoadResult& result);

}  // namespace invar
