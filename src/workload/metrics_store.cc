#include "workload/metrics_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/atomic_file.h"
#include "plot/plot.h"

namespace invar {

namespace {

constexpr int kQuantiles = 1001;

using Columns = std::vector<std::pair<const char*, double>>;

// Lines of the same columns, the first with their names.
class Csv {
 public:
  void add(const Columns& columns) {
    if (text_.empty()) line(columns, [](const auto& c) { return std::string(c.first); });
    line(columns, [](const auto& c) { return fmt::format("{}", c.second); });
  }
  const std::string& text() const { return text_; }

 private:
  template <typename Field>
  void line(const Columns& columns, Field field) {
    for (size_t i = 0; i < columns.size(); ++i) text_ += (i ? "," : "") + field(columns[i]);
    text_ += '\n';
  }

  std::string text_;
};

// [i]: the value that i of kQuantiles - 1 parts of the values do not exceed.
std::vector<double> quantiles(std::vector<double> values) {
  std::ranges::sort(values);
  std::vector<double> found;
  for (int i = 0; i < kQuantiles && !values.empty(); ++i)
    found.push_back(values[static_cast<size_t>(i) * (values.size() - 1) / (kQuantiles - 1)]);
  return found;
}

Curve distribution(const std::string& name, std::vector<double> values, double unit) {
  Curve curve{name, {}};
  const std::vector<double> of = quantiles(std::move(values));
  for (size_t i = 0; i < of.size(); ++i)
    curve.points.emplace_back(of[i] * unit, 100 * static_cast<double>(i) / (kQuantiles - 1));
  return curve;
}

template <typename Of>
std::vector<double> each(const std::vector<LoadRecord>& requests, Of of) {
  std::vector<double> values;
  for (const LoadRecord& r : requests) values.push_back(of(r));
  return values;
}

struct Completed {
  double arrived = 0, complete = 0, prompt_tokens = 0, answer_tokens = 0;
};

// By time, what had happened by then.
std::map<double, Completed> series(const LoadResult& run) {
  std::map<double, Completed> at;
  for (const LoadRecord& r : run.requests) {
    ++at[r.arrival].arrived;
    at[r.first_token].prompt_tokens += r.prompt;
    ++at[r.last_token].complete;
    at[r.last_token].answer_tokens += r.answer;
  }
  Completed sum;
  for (auto& [time, now] : at) {
    now.arrived = sum.arrived += now.arrived;
    now.complete = sum.complete += now.complete;
    now.prompt_tokens = sum.prompt_tokens += now.prompt_tokens;
    now.answer_tokens = sum.answer_tokens += now.answer_tokens;
  }
  return at;
}

}  // namespace

std::string requests_csv(const LoadResult& run) {
  Csv csv;
  for (size_t i = 0; i < run.requests.size(); ++i) {
    const LoadRecord& r = run.requests[i];
    const double e2e = r.last_token - r.arrival, running = r.last_token - r.start;
    const double ttft = r.first_token - r.arrival, prefill = r.first_token - r.start;
    const double decode = r.last_token - r.first_token, executing = running - r.preempted_seconds;
    csv.add(
        {{"request_id", static_cast<double>(i)},
         {"request_arrival", r.arrival},
         {"request_inter_arrival_delay", i ? r.arrival - run.requests[i - 1].arrival : 0},
         {"request_num_tokens", r.prompt + r.answer},
         {"request_num_prefill_tokens", r.prompt},
         {"request_num_decode_tokens", r.answer},
         {"request_pd_ratio", static_cast<double>(r.prompt) / r.answer},
         {"request_num_restarts", r.restarts},
         {"request_scheduling_delay", r.start - r.arrival},
         {"request_e2e_time", e2e},
         {"request_e2e_time_normalized", e2e / r.answer},
         {"request_execution_time", executing},
         {"request_execution_time_normalized", executing / r.answer},
         {"request_preemption_time", r.preempted_seconds},
         {"request_execution_plus_preemption_time", running},
         {"request_execution_plus_preemption_time_normalized", running / r.answer},
         {"prefill_e2e_time", ttft},
         {"prefill_e2e_time_normalized", ttft / r.prompt},
         {"prefill_time_execution_plus_preemption", prefill},
         {"prefill_time_execution_plus_preemption_normalized", prefill / r.prompt},
         {"decode_time_execution_plus_preemption_normalized", decode / std::max(1, r.answer - 1)}});
  }
  return csv.text();
}

std::string steps_csv(const LoadResult& run) {
  Csv csv;
  double end = run.steps.empty() ? 0 : run.steps.front().begin;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    const LoadStep& s = run.steps[i];
    csv.add({{"batch_id", static_cast<double>(i)},
             {"batch_begin", s.begin},
             {"batch_execution_time", s.end - s.begin},
             {"inter_batch_delay", s.begin - end},
             {"batch_size", s.sequences},
             {"batch_num_tokens", s.work.rows()},
             {"batch_num_prefill_tokens", s.work.prompt_rows},
             {"batch_num_decode_tokens", s.work.decode_rows},
             {"requests_running", s.running},
             {"requests_waiting", s.waiting},
             {"requests_preempted", s.preempted}});
    end = s.end;
  }
  return csv.text();
}

std::string tbt_csv(const LoadResult& run) {
  Csv csv;
  const std::vector<double> of = quantiles(run.gaps);
  for (size_t i = 0; i < of.size(); ++i)
    csv.add({{"quantile", static_cast<double>(i) / (kQuantiles - 1)},
             {"decode_token_execution_plus_preemption_time", of[i]}});
  return csv.text();
}

std::string series_csv(const LoadResult& run) {
  Csv csv;
  for (const auto& [time, now] : series(run))
    csv.add({{"seconds", time},
             {"request_arrival", now.arrived},
             {"request_completion", now.complete},
             {"prefill_completion", now.prompt_tokens},
             {"decode_completion", now.answer_tokens}});
  return csv.text();
}

std::string metrics_svg(const LoadResult& run) {
  const std::vector<LoadRecord>& r = run.requests;
  Plot latency{"Latency of requests", "time (s)", "requests (%)", {}, false, true};
  latency.curves = {
      distribution("delay", each(r, [](auto& x) { return x.start - x.arrival; }), 1),
      distribution("first token", each(r, [](auto& x) { return x.first_token - x.arrival; }), 1),
      distribution("last token", each(r, [](auto& x) { return x.last_token - x.arrival; }), 1)};
  Plot tbt{"Time between tokens", "time (ms)", "tokens (%)", {}, false, true};
  tbt.curves = {distribution("", run.gaps, 1e3)};
  Plot rows{"Rows of a step", "time (s)", "rows", {{"prompts", {}}, {"decodes", {}}}, false, true};
  for (const LoadStep& s : run.steps) {
    rows.curves[0].points.emplace_back(s.end, s.work.prompt_rows);
    rows.curves[1].points.emplace_back(s.end, s.work.decode_rows);
  }
  Plot count{"Requests", "time (s)", "requests", {{"arrived", {}}, {"complete", {}}}, false, true};
  for (const auto& [time, now] : series(run)) {
    count.curves[0].points.emplace_back(time, now.arrived);
    count.curves[1].points.emplace_back(time, now.complete);
  }
  return plots_svg({latency, tbt, rows, count});
}

void write_metrics(const std::string& directory, const LoadResult& run) {
  make_directories(directory);
  write_file_atomically(directory + "/requests.csv", requests_csv(run));
  write_file_atomically(directory + "/steps.csv", steps_csv(run));
  write_file_atomically(directory + "/tbt.csv", tbt_csv(run));
  write_file_atomically(directory + "/series.csv", series_csv(run));
  write_file_atomically(directory + "/plots.svg", metrics_svg(run));
}

}  // namespace invar
