// The files of a load's metrics, from a run that is known and from one with preemptions.
#include "workload/metrics_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "workload/step_cost.h"

namespace invar {
namespace {

LoadResult known() {
  LoadResult run;
  run.requests = {
      {.arrival = 1, .start = 2, .first_token = 4, .last_token = 8, .prompt = 8, .answer = 5},
      {.arrival = 3, .start = 4, .first_token = 8, .last_token = 8, .prompt = 2, .answer = 1}};
  run.gaps = {1, 1, 1, 1};
  run.steps = {
      {.begin = 2, .end = 4, .work = {.prompt_rows = 8}, .sequences = 1, .running = 1},
      {.begin = 4.5, .end = 8, .work = {.prompt_rows = 2, .decode_rows = 1}, .sequences = 2}};
  return run;
}

// A line's fields.
std::vector<std::string> fields(const std::string& csv, int line) {
  std::istringstream lines(csv);
  std::string text, field;
  for (int i = 0; i <= line; ++i) std::getline(lines, text);
  std::istringstream in(text);
  std::vector<std::string> found;
  while (std::getline(in, field, ',')) found.push_back(field);
  return found;
}
std::string at(const std::string& csv, const std::string& column, int line) {
  const std::vector<std::string> names = fields(csv, 0);
  const auto found = std::ranges::find(names, column);
  return found == names.end() ? "none" : fields(csv, line).at(found - names.begin());
}

TEST(MetricsStore, TimesOfRequests) {
  const std::string csv = requests_csv(known());
  EXPECT_EQ(at(csv, "request_scheduling_delay", 1), "1");
  EXPECT_EQ(at(csv, "prefill_e2e_time", 1), "3");
  EXPECT_EQ(at(csv, "prefill_e2e_time_normalized", 1), "0.375");
  EXPECT_EQ(at(csv, "request_e2e_time", 1), "7");
  EXPECT_EQ(at(csv, "request_e2e_time_normalized", 1), "1.4");
  EXPECT_EQ(at(csv, "decode_time_execution_plus_preemption_normalized", 1), "1");
  EXPECT_EQ(at(csv, "request_inter_arrival_delay", 2), "2");
  EXPECT_EQ(at(csv, "request_pd_ratio", 2), "2");
  EXPECT_EQ(at(csv, "decode_time_execution_plus_preemption_normalized", 2), "0");
}

TEST(MetricsStore, StepsTokensAndSeries) {
  const LoadResult run = known();
  EXPECT_EQ(at(steps_csv(run), "batch_execution_time", 2), "3.5");
  EXPECT_EQ(at(steps_csv(run), "inter_batch_delay", 2), "0.5");
  EXPECT_EQ(at(steps_csv(run), "batch_num_tokens", 2), "3");
  EXPECT_EQ(at(steps_csv(run), "batch_size", 2), "2");
  EXPECT_EQ(fields(tbt_csv(run), 1001), (std::vector<std::string>{"1", "1"}));
  // At 1, 3, 4 and 8 s.
  EXPECT_EQ(fields(series_csv(run), 2), (std::vector<std::string>{"3", "2", "0", "0", "0"}));
  EXPECT_EQ(fields(series_csv(run), 4), (std::vector<std::string>{"8", "2", "2", "10", "6"}));
}

// Two sequences grow to six blocks, and there are four.
TEST(MetricsStore, CountsRestarts) {
  const auto server = make_scheduler_server(
      {.policy = "vllm", .max_num_seqs = 8, .max_num_batched_tokens = 200, .max_model_len = 200}, 4,
      64);
  const auto clock = make_model_clock({.rows = {{0, 1}, {100, 2}}});
  const LoadResult run = run_load(
      *server, *clock,
      {{.arrival = 0, .prompt = 64, .answer = 100}, {.arrival = 0, .prompt = 64, .answer = 100}});
  int preempted = 0, restarts = 0;
  for (const LoadStep& step : run.steps) preempted += step.preempted;
  for (const LoadRecord& r : run.requests) restarts += r.restarts;
  EXPECT_GT(preempted, 0);
  EXPECT_EQ(restarts, preempted);
  const std::string csv = requests_csv(run);
  const auto number = [&](const char* column) { return std::stod(at(csv, column, 2)); };
  EXPECT_GT(number("request_preemption_time"), 1);
  EXPECT_NEAR(number("request_execution_time") + number("request_preemption_time"),
              number("request_execution_plus_preemption_time"), 1e-9);
  EXPECT_EQ(at(csv, "request_preemption_time", 1), "0");
}

TEST(MetricsStore, WritesFiles) {
  const auto to =
      std::filesystem::temp_directory_path() / ("invar-metrics-" + std::to_string(getpid()));
  write_metrics(to.string(), known());
  for (const char* name : {"requests.csv", "steps.csv", "tbt.csv", "series.csv", "plots.svg"})
    EXPECT_GT(std::filesystem::file_size(to / name), 50u) << name;
  std::filesystem::remove_all(to);
}

}  // namespace
}  // namespace invar
