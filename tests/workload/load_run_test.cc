// A load's bookkeeping, on the scheduler with a clock whose steps cost what the test says.
#include "workload/load_run.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/error.h"
#include "workload/capacity.h"
#include "workload/cost_check.h"
#include "workload/load_report.h"
#include "workload/measurements.h"
#include "workload/step_cost.h"
#include "workload/step_samples.h"

namespace invar {
namespace {

// A step costs 1 s and 0.01 s per row.
StepCost cost() {
  return {.rows = {{0, 1}, {100, 2}}};
}

LoadResult run(const std::string& policy, int budget, const std::vector<LoadRequest>& requests) {
  const auto server = make_scheduler_server(
      {.policy = policy, .max_num_seqs = 8, .max_num_batched_tokens = budget, .max_model_len = 400},
      64, 64);
  const auto clock = make_model_clock(cost());
  return run_load(*server, *clock, requests);
}

TEST(StepCost, IsStraightBetweenItsNumbersAndBeyond) {
  StepCost c = cost();
  c.per_sample = 0.5;
  c.decode_slots = {{0, 0}, {4, 1}, {8, 2}};
  c.mixed = 10;
  EXPECT_DOUBLE_EQ(c.seconds({.prompt_rows = 50}), 1.5);
  EXPECT_DOUBLE_EQ(c.seconds({.prompt_rows = 200}), 3);
  EXPECT_DOUBLE_EQ(c.seconds({.decode_rows = 1, .samples = 1, .decode_slots = 8}), 3.51);
  EXPECT_DOUBLE_EQ(c.seconds({.prompt_rows = 49, .decode_rows = 1, .decode_slots = 12}), 14.5);
}

TEST(StepCost, IsFittedToMixedAndRaggedStepsAndWhatDisturbedThemIsLeftOut) {
  StepCost truth{.rows = {{1, 5e-3}, {64, 5.5e-3}, {512, 12e-3}, {2048, 45e-3}}};
  truth.per_sample = 5e-6;
  truth.mixed = 2e-3;
  truth.prompt_slots = {{0, 0}, {1 << 19, 2e-3}, {1 << 20, 3e-3}};
  truth.decode_slots = {{0, 0}, {1 << 16, 2e-3}, {1 << 18, 5e-3}};
  std::vector<MeasuredStep> steps;
  uint32_t random = 7;
  const auto draw = [&](int most) {
    random = random * 1664525u + 1013904223u;
    return static_cast<int>((random >> 8) % static_cast<uint32_t>(most));
  };
  for (int i = 0; i < 600; ++i) {
    StepWork w{.prompt_rows = i % 3 ? draw(1900) : 0, .decode_rows = 1 + draw(120)};
    w.samples = w.decode_rows;
    w.prompt_slots = int64_t{w.prompt_rows} * draw(4000);
    w.decode_slots = int64_t{w.decode_rows} * (1 + draw(3000));
    const double noise = 1 + 0.02 * (draw(201) - 100) / 100.0;
    steps.push_back({w, truth.seconds(w) * noise * (i % 50 == 7 ? 4 : 1)});
  }
  const StepCost cost = fit_step_cost(steps);
  EXPECT_EQ(cost.steps, 588);  // of 600, 12 were disturbed
  EXPECT_LT(cost.error, 0.02);
  EXPECT_NEAR(cost.mixed, 2e-3, 2e-4);
  const StepWork mixed{.prompt_rows = 480,
                       .decode_rows = 32,
                       .samples = 32,
                       .prompt_slots = 480 * 2000,
                       .decode_slots = 32 * 2048};
  EXPECT_NEAR(cost.seconds(mixed), truth.seconds(mixed), 0.02 * truth.seconds(mixed));
  EXPECT_THROW(fit_step_cost({}), Error);
}

TEST(StepCost, IsMeasuredOnEveryKindOfSteps) {
  const auto model =
      open_model({.model = {.model = "tiny", .load_format = "dummy:1", .threads = 1}});
  EngineOptions engine{.prefix_caching = false};
  engine.scheduler = {
      .policy = "sarathi", .max_num_seqs = 4, .max_num_batched_tokens = 24, .max_model_len = 200};
  const std::vector<MeasuredStep> steps = measure_steps(
      model, make_cpu_clock,
      {.engines = {engine},
       .requests = std::vector<LoadRequest>(6, {.arrival = 9, .prompt = 60, .answer = 20}),
       .seconds = 0.05});
  int alone = 0, mixed = 0;
  for (const MeasuredStep& s : steps) {
    EXPECT_GT(s.seconds, 0);
    alone += s.work.decode_rows == 4 && s.work.prompt_rows == 0;
    mixed += s.work.decode_rows > 0 && s.work.prompt_rows > 0;
  }
  EXPECT_GT(alone, 20);
  EXPECT_GT(mixed, 3);
  EXPECT_GT(decode_step_seconds(*model, 3, 70), 0);
}

TEST(Measurements, ComeBackFromTheirFile) {
  Measurements m{.model = "m",
                 .identity = "i",
                 .machine = "a machine",
                 .slot_bytes = 147456,
                 .plans_in_flight = 2,
                 .decode_sequences = 32,
                 .decode_context = 4096,
                 .decode_seconds = 9e-3,
                 .steps = {{{.prompt_rows = 500,
                             .decode_rows = 12,
                             .samples = 13,
                             .prompt_slots = int64_t{1} << 40,
                             .decode_slots = 7},
                            0.0125}},
                 .runs = {}};
  m.runs.push_back({.load = "chat",
                    .policy = "sarathi",
                    .budget = 512,
                    .requests = 9,
                    .rate = 2.5,
                    .summary = {}});
  m.runs[0].summary.tbt.p99 = 0.25;
  const json::Value value = to_json(m);
  const Measurements back = parse_measurements(json::parse(json::dump(value), "f"), "f");
  EXPECT_EQ(to_json(back), value);
  EXPECT_EQ(back.runs_of("chat", "sarathi", 512).size(), 1u);
  EXPECT_TRUE(back.runs_of("chat", "sarathi", 2048).empty());
  EXPECT_TRUE(back.runs_of("other", "sarathi", 512).empty());

  // Every member must be there and be what it is.
  for (const auto& [key, unused] : value.as_object()) {
    json::Value broken = value;
    broken.set(key, json::Array{json::Array{-1}});
    EXPECT_THROW(parse_measurements(broken, "f"), Error) << key;
    json::Object fewer = value.as_object();
    std::erase_if(fewer, [&](const json::Member& member) { return member.first == key; });
    EXPECT_THROW(parse_measurements(fewer, "f"), Error) << key;
  }
}

LoadSummary summary_of(double throughput, double delay, double tbt) {
  LoadSummary s;
  s.requests_per_second = throughput;
  s.scheduling_delay.p50 = delay;
  s.tbt.p99 = tbt;
  s.mean_step = 0.01;
  return s;
}

TEST(CostCheck, AgreesWithinTenPercent) {
  const LoadSummary measured = summary_of(2, 0.5, 0.1);
  const auto agrees = [&](const LoadSummary& model) {
    return CostCheck{.points = {{.model = model, .measured = measured}}}.agrees();
  };
  EXPECT_TRUE(agrees(measured));
  EXPECT_TRUE(agrees(summary_of(1.81, 0.54, 0.109)));
  EXPECT_FALSE(agrees(summary_of(2.3, 0.5, 0.1)));
  EXPECT_FALSE(agrees(summary_of(2, 0.4, 0.1)));
  EXPECT_FALSE(agrees(summary_of(2, 0.5, 0.085)));
  // A delay shorter than a step says only when in a step a request came.
  const CostCheck short_delay{
      .points = {{.model = summary_of(2, 0.008, 0.1), .measured = summary_of(2, 0.001, 0.1)}}};
  EXPECT_TRUE(short_delay.agrees());
}

TEST(LoadRun, KnowsWhetherItIsSaturatedAndInBalance) {
  // A request takes a step of 1.1 s and one of 1.01 s, alone or with few others.
  std::vector<LoadRequest> requests(200, {.prompt = 10, .answer = 2});
  const auto run_at = [&](double rate) {
    for (size_t i = 0; i < requests.size(); ++i)
      requests[i].arrival = static_cast<double>(i) / rate;
    return summarize(run("sarathi", 20, requests));
  };
  const LoadSummary slow = run_at(0.4);
  EXPECT_FALSE(slow.is_saturated());
  EXPECT_TRUE(slow.is_balanced());
  EXPECT_NEAR(slow.answer, 2.1, 1);
  // 20 rows a step of 1.2 s are less than two requests of 11 rows.
  EXPECT_NEAR(slow.backlog_growth, 0, 0.01);
  const LoadSummary fast = run_at(6);
  EXPECT_NEAR(fast.backlog_growth, 1 - 20 / 1.2 / (6 * 11), 0.05);
  EXPECT_TRUE(fast.is_saturated());
  EXPECT_FALSE(fast.is_balanced());
  EXPECT_FALSE(point_of({.scheduling_delay_p50 = 1e9, .tbt_p99 = 1e9}, 6, fast).is_within);
  EXPECT_TRUE(point_of({.scheduling_delay_p50 = 1e9, .tbt_p99 = 1e9}, 0.4, slow).is_within);
}

TEST(LoadRun, EndsWhereItIsToldTo) {
  const auto server = make_scheduler_server(
      {.policy = "sarathi", .max_num_seqs = 8, .max_num_batched_tokens = 100, .max_model_len = 400},
      64, 64);
  const auto clock = make_model_clock(cost());
  const LoadResult r = run_load(*server, *clock, {{.prompt = 10, .answer = 90}}, {}, 5);
  EXPECT_EQ(r.steps.size(), 5u);
}

TEST(LoadRun, KnowsWhenEverythingHappened) {
  // 100 rows at 10 s: 2 s; a row then takes 1.01 s. The second request waits for the clock.
  const LoadResult r =
      run("sarathi", 400,
          {{.arrival = 10, .prompt = 100, .answer = 3}, {.arrival = 50, .prompt = 1, .answer = 1}});
  ASSERT_EQ(r.requests.size(), 2u);
  EXPECT_DOUBLE_EQ(r.requests[0].start, 10);
  EXPECT_DOUBLE_EQ(r.requests[0].first_token, 12);
  EXPECT_NEAR(r.requests[0].last_token, 14.02, 1e-9);
  EXPECT_DOUBLE_EQ(r.requests[1].start, 50);
  ASSERT_EQ(r.gaps.size(), 2u);
  EXPECT_NEAR(r.gaps[0], 1.01, 1e-9);
  ASSERT_EQ(r.steps.size(), 4u);
  EXPECT_EQ(r.steps[0].work.prompt_rows, 100);
  EXPECT_EQ(r.steps[0].work.prompt_slots, 5050);
  EXPECT_EQ(r.steps[1].work.decode_rows, 1);
  EXPECT_EQ(r.steps[1].work.decode_slots, 101);
  const LoadSummary s = summarize(r);
  EXPECT_NEAR(s.seconds, 41.01, 1e-9);
  EXPECT_NEAR(s.requests_per_second, 2 / 41.01, 1e-9);
  EXPECT_DOUBLE_EQ(s.ttft.p99, 2);
  EXPECT_EQ(s.steps, 4);
}

TEST(LoadRun, WhoComesDuringAStepWaitsForItsEnd) {
  const LoadResult r =
      run("vllm", 400,
          {{.arrival = 0, .prompt = 100, .answer = 2}, {.arrival = 1, .prompt = 300, .answer = 1}});
  // The second arrives during the first step and goes before the first's decode: a stall of 4 s.
  EXPECT_DOUBLE_EQ(r.requests[1].start, 2);
  EXPECT_DOUBLE_EQ(r.requests[1].first_token, 6);
  EXPECT_NEAR(r.gaps.at(0), 5.01, 1e-9);
  // Chunks of 100 rows bound the same gap by a step.
  const LoadResult chunked =
      run("sarathi", 100,
          {{.arrival = 0, .prompt = 100, .answer = 2}, {.arrival = 1, .prompt = 300, .answer = 1}});
  EXPECT_NEAR(chunked.gaps.at(0), 2, 1e-9);
}

TEST(LoadRun, PercentilesAreOfTheNearestRank) {
  const std::vector<double> values = {5, 1, 4, 2, 3};
  EXPECT_EQ(percentile(values, 0.5), 3);
  EXPECT_EQ(percentile(values, 0.6), 3);
  EXPECT_EQ(percentile(values, 0.61), 4);
  EXPECT_EQ(percentile(values, 0.99), 5);
  EXPECT_EQ(percentile(values, 0), 1);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

TEST(Capacity, IsFoundFromBothSidesAndToItsPrecision) {
  const auto run_at = [](double limit) {
    return [limit](double rate) {
      LoadSummary s;
      s.tbt.p99 = rate / limit * 0.2;
      s.requests_per_second = rate;
      return s;
    };
  };
  for (const double first : {0.1, 3.0, 700.0}) {
    const Capacity found = find_capacity({}, first, run_at(3.7));
    EXPECT_LE(found.rate, 3.7);
    EXPECT_GE(found.rate, 3.7 * 0.975);
    EXPECT_LE(found.points.size(), 20u);
  }
  EXPECT_EQ(find_capacity({}, 1, run_at(1e-9)).rate, 0);  // and it ends
  // A load that is over before anybody waits has no capacity but its throughput.
  const Capacity unbounded = find_capacity(
      {}, 1, [](double rate) { return LoadSummary{.requests_per_second = std::min(rate, 5.0)}; });
  EXPECT_FALSE(unbounded.is_bounded);
  EXPECT_EQ(unbounded.rate, 5);
  // Either limit counts.
  const Capacity delayed = find_capacity({.scheduling_delay_p50 = 2}, 1, [](double rate) {
    LoadSummary s;
    s.scheduling_delay.p50 = s.requests_per_second = rate;
    return s;
  });
  EXPECT_NEAR(delayed.rate, 2, 0.05);
}

TEST(LoadReport, SaysWhatTheRunSays) {
  const std::vector<LoadRequest> requests = {{.arrival = 0, .prompt = 100, .answer = 9},
                                             {.arrival = 1, .prompt = 300, .answer = 2}};
  LoadReport report;
  report.spec.name = "a <b> & c";
  report.spec.requests = 2;
  report.clock = "model";
  report.rate = 1;
  for (const char* policy : {"sarathi", "vllm"}) {
    PolicyReport& p = report.policies.emplace_back();
    p.policy = policy;
    p.run = run(policy, p.policy == "vllm" ? 400 : 100, requests);
    p.summary = summarize(p.run);
  }
  EXPECT_NE(compare_stalls(report).find("P99 TBT of sarathi is 2000.0 ms, 2.5 x lower than vllm's "
                                        "5020.0 ms"),
            std::string::npos)
      << compare_stalls(report);
  const std::string html = to_html(report);
  EXPECT_NE(html.find("a &lt;b> &amp; c"), std::string::npos);
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_EQ(html.find("nan"), std::string::npos);
  const json::Value v = to_json(report);
  EXPECT_EQ(v.find("policies")->as_array().size(), 2u);
  EXPECT_NEAR(v.find("policies")->as_array()[1].find("run")->find("tbt")->find("p99")->as_number(),
              5.02, 1e-9);
  std::swap(report.policies[0].summary, report.policies[1].summary);
  EXPECT_NE(compare_stalls(report).find("2.5 x higher than"), std::string::npos);
  report.policies.pop_back();
  EXPECT_EQ(compare_stalls(report), "");
}

// With two steps in flight, too, where a request that comes during a step has to wait for another.
TEST(LoadServer, TheEngineAndTheSchedulerAloneDoTheSameSteps) {
  const auto model =
      open_model({.model = {.model = "tiny", .load_format = "dummy:1", .threads = 1}});
  std::vector<LoadRequest> requests;
  for (int i = 0; i < 9; ++i)
    requests.push_back({.arrival = 2.0 * i, .prompt = 1 + 17 * i, .answer = 1 + 3 * i % 11});
  std::vector<double> ends;
  for (const auto& [policy, rows, ahead] : {std::tuple("sarathi", 24, false),
                                            {"sarathi", 24, true},
                                            {"vllm", 200, false},
                                            {"vllm", 200, true}}) {
    EngineOptions options{.prefix_caching = false, .async_scheduling = ahead};
    options.scheduler = {
        .policy = policy, .max_num_seqs = 4, .max_num_batched_tokens = rows, .max_model_len = 200};
    const int blocks = Engine(*model, options).num_blocks();
    const auto engine = make_instance_server(model, options);
    options.scheduler.max_plans_in_flight = ahead ? 2 : 1;
    const auto scheduler = make_scheduler_server(options.scheduler, blocks, options.block_size);
    const auto one = make_model_clock(cost()), other = make_model_clock(cost());
    const LoadResult a = run_load(*engine, *one, requests),
                     b = run_load(*scheduler, *other, requests);
    ASSERT_EQ(a.steps.size(), b.steps.size());
    for (size_t i = 0; i < a.steps.size(); ++i) {
      EXPECT_EQ(a.steps[i].work.prompt_slots, b.steps[i].work.prompt_slots);
      EXPECT_EQ(a.steps[i].work.decode_rows, b.steps[i].work.decode_rows);
      EXPECT_EQ(a.steps[i].end, b.steps[i].end);
    }
    EXPECT_EQ(a.gaps, b.gaps);
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(a.requests[i].start, b.requests[i].start);
    ends.push_back(b.steps.back().end);
  }
  EXPECT_NE(ends[0], ends[1]);
  EXPECT_NE(ends[2], ends[3]);
}

TEST(LoadServer, RefusesARequestThatIsTooLong) {
  EXPECT_THROW(run("sarathi", 100, {{.prompt = 399, .answer = 2}}), UsageError);
}

}  // namespace
}  // namespace invar
