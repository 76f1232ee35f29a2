#include "workload/step_cost.h"

#include <algorithm>

#include "workload/load_run.h"

namespace invar {

namespace {

class ModelClock final : public LoadClock {
 public:
  explicit ModelClock(const StepCost& cost) : cost_(cost) {}
  double now() override { return now_; }
  void wait_until(double time) override { now_ = std::max(now_, time); }
  void after_step(const StepWork& work) override { now_ += cost_.seconds(work); }

 private:
  StepCost cost_;
  double now_ = 0;
};

double median(std::vector<double> values) {
  return percentile(std::move(values), 0.5);
}

// Steps of `count` sequences at once, each `prompt` tokens and then `answer`.
std::vector<LoadStep> steps_of(LoadServer& server, LoadClock& clock, int count, int prompt,
                               int answer) {
  const LoadRequest request{.arrival = 0, .prompt = prompt, .answer = answer};
  return run_load(server, clock, std::vector<LoadRequest>(static_cast<size_t>(count), request))
      .steps;
}

EngineOptions engine_options(int sequences, int rows, int max_model_len) {
  EngineOptions options;
  options.prefix_caching = false;
  options.scheduler.max_num_seqs = sequences;
  options.scheduler.max_num_batched_tokens = std::max(rows, sequences);
  options.scheduler.max_model_len = max_model_len;
  return options;
}

// Seconds of a step of `count` whole prompts, the median of a few.
double prompt_seconds(LoadServer& server, LoadClock& clock, int count, int prompt) {
  std::vector<double> seconds;
  for (int i = 0; i < (prompt > 1024 ? 3 : 7); ++i) {
    const LoadStep step = steps_of(server, clock, count, prompt, 1).front();
    seconds.push_back(step.end - step.begin);
  }
  return median(std::move(seconds));
}

// Slope of a step's seconds by the slots its rows see: chunks of one size along a long prompt.
double seconds_per_prompt_slot(const std::shared_ptr<Model>& model, LoadClock& clock,
                               int max_model_len) {
  const int chunk = std::max(1, std::min(256, max_model_len / 8));
  const auto server = make_instance_server(model, engine_options(1, chunk, max_model_len));
  const int prompt = (max_model_len - 1) / chunk * chunk;
  std::vector<double> slopes;
  for (int i = 0; i < 3; ++i) {
    const auto steps = steps_of(*server, clock, 1, prompt, 1);
    // The last one samples. Halves against each other: one slow step moves a mean only a little.
    const size_t half = (steps.size() - 1) / 2;
    double seconds = 0, slots = 0;
    for (size_t s = 0; s < half; ++s) {
      seconds += steps[half + s].end - steps[half + s].begin - (steps[s].end - steps[s].begin);
      slots += static_cast<double>(steps[half + s].work.prompt_slots - steps[s].work.prompt_slots);
    }
    slopes.push_back(slots > 0 ? seconds / slots : 0);
  }
  return std::max(0.0, median(std::move(slopes)));
}

// The same for decodes: 8 sequences far along against 8 that have just begun.
double seconds_per_decode_slot(const std::shared_ptr<Model>& model, LoadClock& clock,
                               int max_model_len) {
  constexpr int kSequences = 8, kSteps = 16;
  const int far = std::max(1, max_model_len - kSteps - 1), near = std::min(16, far);
  const auto server =
      make_instance_server(model, engine_options(kSequences, kSequences * 64, max_model_len));
  double seconds[2], slots[2];
  for (const int is_far : {0, 1}) {
    std::vector<double> all;
    for (const LoadStep& step :
         steps_of(*server, clock, kSequences, is_far ? far : near, kSteps + 1)) {
      if (step.work.prompt_rows > 0 || step.work.decode_rows < kSequences) continue;
      all.push_back(step.end - step.begin);
      slots[is_far] = static_cast<double>(step.work.decode_slots);
    }
    if (all.empty()) return 0;
    seconds[is_far] = median(std::move(all));
  }
  return slots[1] > slots[0] ? std::max(0.0, (seconds[1] - seconds[0]) / (slots[1] - slots[0])) : 0;
}

}  // namespace

double StepCost::seconds(const StepWork& work) const {
  const int n = work.rows();
  const auto above =
      std::find_if(rows.begin(), rows.end(), [&](const auto& knot) { return knot.first >= n; });
  double sum = per_sample * work.samples +
               per_prompt_slot * static_cast<double>(work.prompt_slots) +
               per_decode_slot * static_cast<double>(work.decode_slots);
  if (above == rows.begin()) return sum + above->second;
  // Beyond the last number the last line goes on.
  const auto high = above == rows.end() ? rows.end() - 1 : above, low = high - 1;
  const double slope = (high->second - low->second) / (high->first - low->first);
  return sum + low->second + slope * (n - low->first);
}

json::Value StepCost::to_json() const {
  json::Array knots;
  for (const auto& [number, seconds] : rows) knots.push_back(json::Array{number, seconds});
  return json::Object{{"seconds_by_rows", std::move(knots)},
                      {"seconds_per_sample", per_sample},
                      {"seconds_per_prompt_slot", per_prompt_slot},
                      {"seconds_per_decode_slot", per_decode_slot}};
}

StepCost measure_step_cost(const std::shared_ptr<Model>& model, LoadClock& clock, int max_rows,
                           int max_model_len) {
  StepCost cost;
  cost.per_prompt_slot = seconds_per_prompt_slot(model, clock, max_model_len);
  cost.per_decode_slot = seconds_per_decode_slot(model, clock, max_model_len);
  constexpr int kSamples = 32;
  const int longest = std::min(max_rows, max_model_len - 1);
  const auto server = make_instance_server(
      model, engine_options(kSamples, std::max(max_rows, kSamples), max_model_len));
  prompt_seconds(*server, clock, 1, longest);  // warm
  if (longest >= kSamples)
    cost.per_sample = std::max(0.0, (prompt_seconds(*server, clock, kSamples, 1) -
                                     prompt_seconds(*server, clock, 1, kSamples)) /
                                        (kSamples - 1));
  for (int number = 1;; number = std::min(longest, number < 64 ? 4 * number : 2 * number)) {
    const double slots = number * (number + 1.0) / 2;
    const double own =
        prompt_seconds(*server, clock, 1, number) - cost.per_sample - slots * cost.per_prompt_slot;
    // More rows never cost less: what says so is noise.
    cost.rows.emplace_back(number, std::max(own, cost.rows.empty() ? 0 : cost.rows.back().second));
    if (number == longest) return cost;
  }
}

std::unique_ptr<LoadClock> make_model_clock(const StepCost& cost) {
  return std::make_unique<ModelClock>(cost);
}

}  // namespace invar
