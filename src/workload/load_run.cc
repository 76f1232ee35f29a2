#include "workload/load_run.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"

namespace invar {

namespace {

// The events of a step, by request.
class StepEvents final : public OutputSink {
 public:
  void on_start(int64_t request, int32_t) override { started.push_back(request); }
  void on_preempt(int64_t request) override { preempted.push_back(request); }
  void on_token(const TokenOutput& output) override {
    if (output.error) fail("request {} failed: {}", output.request, output.error);
    sampled.push_back(output.request);
    finished += output.finish != FinishReason::none;
  }
  void clear() {
    started.clear();
    preempted.clear();
    sampled.clear();
  }

  std::vector<int64_t> started, preempted, sampled;
  int finished = 0;  // since the beginning
};

// Enters a step that took the clock from `begin` to `end`.
void record(const StepEvents& events, double begin, double end, LoadResult& result) {
  for (const int64_t id : events.started) {
    LoadRecord& r = result.requests[static_cast<size_t>(id)];
    if (r.start < 0) {
      r.start = begin;
      continue;
    }
    r.preempted_seconds += begin - r.preempted_at;
    ++r.restarts;
  }
  for (const int64_t id : events.preempted)
    result.requests[static_cast<size_t>(id)].preempted_at = begin;
  for (const int64_t id : events.sampled) {
    LoadRecord& r = result.requests[static_cast<size_t>(id)];
    if (r.answer++ == 0)
      r.first_token = end;
    else
      result.gaps.push_back(end - r.last_token);
    r.last_token = end;
  }
}

}  // namespace

LoadResult run_load(LoadServer& server, LoadClock& clock, const std::vector<LoadRequest>& requests,
                    const AnsweredProgress& progress, double until) {
  LoadResult result;
  for (const LoadRequest& r : requests)
    result.requests.push_back({.arrival = r.arrival, .start = -1, .prompt = r.prompt});
  StepEvents events;
  size_t next = 0;
  while (next < requests.size() || server.has_work()) {
    if (!server.has_work()) clock.wait_until(requests[next].arrival);
    const double begin = clock.now();
    for (; next < requests.size() && requests[next].arrival <= begin; ++next)
      server.add(static_cast<int64_t>(next), requests[next]);
    events.clear();
    if (!server.step(events)) continue;
    const StepStats& stats = server.last_step();
    clock.after_step(stats.work);
    const double end = clock.now();
    record(events, begin, end, result);
    const double idle = stats.device_idle_seconds;
    const double device = stats.device_seconds > 0 ? stats.device_seconds + idle : 0;
    result.steps.push_back({begin, end, device, idle, stats.work, stats.sequences, stats.running,
                            stats.waiting, stats.preempted});
    if (progress) progress(end, events.finished);
    if (end >= until) return result;
  }
  for (size_t i = 0; i < requests.size(); ++i)
    CHECK(result.requests[i].answer == requests[i].answer, "an answer of another length");
  return result;
}

namespace {

// The slope of y by x, least squares; 0 where all x are the same.
double slope(const std::vector<double>& x, const std::vector<double>& y) {
  const double n = static_cast<double>(x.size());
  double sum_x = 0, sum_y = 0, xx = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum_x += x[i];
    sum_y += y[i];
  }
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - sum_x / n) * (x[i] - sum_x / n);
    xy += (x[i] - sum_x / n) * (y[i] - sum_y / n);
  }
  return xx > 0 ? xy / xx : 0;
}

// Rows that have come and are not computed yet, at every arrival, by their growth.
double backlog_growth(const LoadResult& result) {
  std::vector<double> times, waiting;
  double come = 0, computed = 0;
  size_t step = 0;
  for (const LoadRecord& r : result.requests) {
    for (; step < result.steps.size() && result.steps[step].end <= r.arrival; ++step)
      computed += result.steps[step].work.rows();
    come += r.prompt + r.answer - 1;
    times.push_back(r.arrival);
    waiting.push_back(std::max(0.0, come - computed));
  }
  const double seconds = times.back() - times.front();
  return seconds > 0 ? slope(times, waiting) * seconds / come : 0;
}

}  // namespace

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  const auto at = values.begin() + std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(rank) - 1,
                                                              0, std::ssize(values) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

Percentiles percentiles_of(const std::vector<double>& values) {
  return {percentile(values, 0.5), percentile(values, 0.9), percentile(values, 0.99)};
}

LoadSummary summarize(const LoadResult& result) {
  LoadSummary s;
  std::vector<double> ttft, delay, arrivals;
  double tokens = 0, answer_tokens = 0;
  const double first = result.requests.front().arrival;
  for (const LoadRecord& r : result.requests) {
    ttft.push_back(r.first_token - r.arrival);
    delay.push_back(r.start - r.arrival);
    arrivals.push_back(r.arrival);
    s.answer += (r.last_token - r.arrival) / static_cast<double>(result.requests.size());
    s.seconds = std::max(s.seconds, r.last_token - first);
    tokens += r.prompt + r.answer;
    answer_tokens += r.answer;
  }
  s.arrivals = arrivals.back() - first;
  s.backlog_growth = backlog_growth(result);
  s.ttft = percentiles_of(ttft);
  s.scheduling_delay = percentiles_of(delay);
  s.tbt = percentiles_of(result.gaps);
  for (const double gap : result.gaps) s.longest_gap = std::max(s.longest_gap, gap);
  s.requests_per_second = static_cast<double>(result.requests.size()) / s.seconds;
  s.tokens_per_second = tokens / s.seconds;
  s.answer_tokens_per_second = answer_tokens / s.seconds;
  s.steps = std::ssize(result.steps);
  int64_t prompt_steps = 0;
  for (const LoadStep& step : result.steps) {
    const bool has_prompt = step.work.prompt_rows > 0;
    prompt_steps += has_prompt;
    (has_prompt ? s.prompt_step : s.decode_step) += step.end - step.begin;
    s.prompt_rows += step.work.prompt_rows;
    s.decode_rows += step.work.decode_rows;
    s.running += step.running;
    s.waiting += step.waiting;
    s.mixed_share += has_prompt && step.work.decode_rows > 0;
    s.preempted += step.preempted;
    s.idle_share += step.idle / s.seconds;
  }
  for (double* mean : {&s.prompt_rows, &s.decode_rows, &s.running, &s.waiting, &s.mixed_share})
    *mean /= static_cast<double>(std::max<int64_t>(1, s.steps));
  s.mean_step =
      (s.prompt_step + s.decode_step) / static_cast<double>(std::max<int64_t>(1, s.steps));
  s.prompt_step /= static_cast<double>(std::max<int64_t>(1, prompt_steps));
  s.decode_step /= static_cast<double>(std::max<int64_t>(1, s.steps - prompt_steps));
  return s;
}

}  // namespace invar
