// Arrivals and lengths are distributed as they say; traces are read as they stand.
#include "workload/requests.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "base/error.h"

namespace invar {
namespace {

LoadSpec spec_with(const std::string& arrivals, double variation = 0.5) {
  LoadSpec spec;
  spec.arrivals.kind = arrivals;
  spec.arrivals.variation = variation;
  spec.prompts = {.kind = "uniform", .low = 10, .high = 19};
  spec.answers = {.kind = "fixed", .low = 7, .high = 7};
  return spec;
}

// Mean and standard deviation by mean of the intervals of many arrivals.
std::pair<double, double> intervals_of(const LoadSpec& spec, double rate) {
  const auto requests = make_requests(spec, 20000, rate);
  double sum = 0, squares = 0;
  for (size_t i = 1; i < requests.size(); ++i) {
    const double interval = requests[i].arrival - requests[i - 1].arrival;
    EXPECT_GE(interval, 0);
    sum += interval;
    squares += interval * interval;
  }
  const double n = static_cast<double>(requests.size() - 1), mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean) / mean};
}

TEST(Requests, ArriveAsTheirDistributionSays) {
  // 20000 intervals: the mean is known to 1 / sqrt(20000) = 0.7 % of a standard deviation.
  const auto [poisson, poisson_variation] = intervals_of(spec_with("poisson"), 4);
  EXPECT_NEAR(poisson, 0.25, 0.25 * 0.03);
  EXPECT_NEAR(poisson_variation, 1, 0.05);
  const auto [gamma, gamma_variation] = intervals_of(spec_with("gamma", 0.5), 4);
  EXPECT_NEAR(gamma, 0.25, 0.25 * 0.02);
  EXPECT_NEAR(gamma_variation, 0.5, 0.03);
  const auto [bursts, bursts_variation] = intervals_of(spec_with("gamma", 2), 4);
  EXPECT_NEAR(bursts, 0.25, 0.25 * 0.06);
  EXPECT_NEAR(bursts_variation, 2, 0.2);
  const auto [fixed, fixed_variation] = intervals_of(spec_with("fixed"), 4);
  EXPECT_NEAR(fixed, 0.25, 1e-9);
  EXPECT_NEAR(fixed_variation, 0, 1e-4);
}

TEST(Requests, AreTheSameAtEveryRateAndCloserTogether) {
  const LoadSpec spec = spec_with("poisson");
  const auto slow = make_requests(spec, 50, 1), fast = make_requests(spec, 50, 8);
  for (size_t i = 0; i < slow.size(); ++i) {
    EXPECT_EQ(slow[i].prompt, fast[i].prompt);
    EXPECT_NEAR(slow[i].arrival, 8 * fast[i].arrival, 1e-9);
  }
  LoadSpec other = spec;
  other.seed = 43;
  EXPECT_NE(make_requests(other, 50, 1)[20].arrival, slow[20].arrival);
}

TEST(Requests, HaveTheLengthsThatWereAskedFor) {
  LoadSpec spec = spec_with("fixed");
  std::set<int> prompts;
  for (const LoadRequest& r : make_requests(spec, 500, 1)) {
    prompts.insert(r.prompt);
    EXPECT_EQ(r.answer, 7);
  }
  EXPECT_EQ(prompts.size(), 10u);
  EXPECT_EQ(*prompts.begin(), 10);
  EXPECT_EQ(*prompts.rbegin(), 19);

  spec.prompts = {.kind = "zipf", .low = 5, .high = 14, .theta = 1};
  spec.answers = {.kind = "ratio", .ratio = 4};
  std::map<int, double> count;
  for (const LoadRequest& r : make_requests(spec, 20000, 1)) {
    ++count[r.prompt];
    EXPECT_EQ(r.answer, std::max(1, static_cast<int>(std::lround(r.prompt / 4.0))));
  }
  double sum = 0;
  for (int r = 1; r <= 10; ++r) sum += 1.0 / r;
  for (int r = 1; r <= 10; ++r) {
    const double expected = 20000 / (r * sum);
    EXPECT_NEAR(count[4 + r], expected, 5 * std::sqrt(expected)) << r;
  }
}

constexpr char kTimed[] =
    "Date,Time,PromptTokenCount,CompletionTokenCount\r\n"
    "2023-11-16,18:17:04.5,30,3\r\n"
    "2023-11-16,18:17:03.25,10,1\r\n"
    "2023-11-17,00:00:00,20,0\r\n";

TEST(Trace, TimesAreOrderedAndCountFromTheFirst) {
  const TraceTable table = parse_trace(kTimed, "t.csv");
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_TRUE(table.has_times);
  EXPECT_EQ(table.rows[0].prompt, 10);
  EXPECT_EQ(table.rows[0].arrival, 0);
  EXPECT_NEAR(table.rows[1].arrival, 1.25, 1e-6);
  EXPECT_NEAR(table.rows[2].arrival, 5 * 3600 + 42 * 60 + 56.75, 1e-6);  // past midnight
  EXPECT_EQ(table.rows[2].answer, 1);
}

TEST(Trace, ColumnsAreFoundByName) {
  const TraceTable table = parse_trace(
      "\xef\xbb\xbfid,num_decode_tokens,num_prefill_tokens\n1,20,300\n\n2,5,70\n", "t.csv");
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_FALSE(table.has_times);
  EXPECT_EQ(table.rows[0].prompt, 300);
  EXPECT_EQ(table.rows[0].answer, 20);
  EXPECT_EQ(table.rows[1].prompt, 70);
}

TEST(Trace, WhatIsNotATraceIsRefusedWithItsLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "t.csv: expected the columns"},
      {"a,b\n1,2\n", "t.csv: expected the columns"},
      {"num_prefill_tokens,num_decode_tokens\n", "t.csv: expected requests"},
      {"num_prefill_tokens,num_decode_tokens\n1\n", "t.csv line 2: expected 2 fields, found 1"},
      {"num_prefill_tokens,num_decode_tokens\n1,2\n0,2\n", "t.csv line 3: expected tokens"},
      {"num_prefill_tokens,num_decode_tokens\n1,x\n", "t.csv line 2: expected tokens"},
      {"num_prefill_tokens,num_decode_tokens\n1,99999999999999\n", "t.csv line 2: expected"},
      {"Date,Time,PromptTokenCount,CompletionTokenCount\n2023-02-30,1:2:3,1,1\n", "line 2"},
      {"Date,Time,PromptTokenCount,CompletionTokenCount\n2023-02-03,1:2,1,1\n", "line 2"},
      {"Date,Time,PromptTokenCount,CompletionTokenCount\n2023-02-03,1:2:nan,1,1\n", "line 2"}};
  for (const auto& [csv, expected] : cases) try {
      parse_trace(csv, "t.csv");
      ADD_FAILURE() << "accepted: " << csv;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
}

TEST(Requests, LognormalLengthsHaveTheirMedianAndP90) {
  LoadSpec spec = spec_with("poisson");
  spec.prompts = {.kind = "lognormal", .low = 1, .high = 16000, .median = 7059, .p90 = 12985};
  spec.answers = {.kind = "lognormal", .low = 1, .high = 16000, .median = 208, .p90 = 371};
  const auto lengths = [&](int LoadRequest::*length) {
    std::vector<double> all;
    for (const LoadRequest& r : make_requests(spec, 20001, 1)) all.push_back(r.*length);
    std::sort(all.begin(), all.end());
    return std::pair(all[10000], all[18000]);
  };
  EXPECT_NEAR(lengths(&LoadRequest::prompt).first, 7059, 0.02 * 7059);
  EXPECT_NEAR(lengths(&LoadRequest::prompt).second, 12985, 0.02 * 12985);
  EXPECT_NEAR(lengths(&LoadRequest::answer).second, 371, 0.02 * 371);
  spec.max_tokens = 8192;
  for (const LoadRequest& r : make_requests(spec, 2000, 1)) EXPECT_LE(r.prompt + r.answer, 8192);
}

TEST(Trace, MayHaveSecondsOfArrival) {
  const TraceTable table = parse_trace(
      "arrived_at,num_prefill_tokens,num_decode_tokens\n4.5,10,2\n1.25,20,3\n", "x.csv");
  EXPECT_TRUE(table.has_times);
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0].prompt, 20);
  EXPECT_DOUBLE_EQ(table.rows[1].arrival, 3.25);
  EXPECT_THROW(parse_trace("arrived_at,num_prefill_tokens,num_decode_tokens\n-1,10,2\n", "x.csv"),
               Error);
}

TEST(Trace, ItsBusiestWindowIsTheOneWithMostRequests) {
  const std::string path = testing::TempDir() + "busiest_" + std::to_string(getpid());
  std::ofstream(path) << "arrived_at,num_prefill_tokens,num_decode_tokens\n"
                         "0,1,1\n10,2,1\n11,3,1\n12,4,1\n30,5,1\n31,6,1\n";
  LoadSpec spec = spec_with("trace");
  spec.trace = {.file = path, .busiest = 5};
  EXPECT_EQ(most_requests(spec), 3);
  const auto requests = make_requests(spec, 3, 0);
  EXPECT_EQ(requests[0].prompt, 2);
  EXPECT_DOUBLE_EQ(requests[0].arrival, 0);
  EXPECT_DOUBLE_EQ(requests[2].arrival, 2);
  EXPECT_THROW(make_requests(spec, 4, 0), UsageError);
}

}  // namespace
}  // namespace invar
