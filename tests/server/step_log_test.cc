#include "server/step_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "base/input_file.h"
#include "server/step_trace.h"

namespace invar::server {
namespace {

std::vector<int64_t> numbers_of(const json::Value& log) {
  std::vector<int64_t> all;
  for (const json::Value& step : log.find("steps")->as_array())
    all.push_back(step.as_array()[0].as_integer());
  return all;
}

TEST(StepLog, GivesTheStepsAfterANumber) {
  StepLog log;
  EXPECT_EQ(log.after(0).find("last")->as_integer(), 0);
  EXPECT_EQ(numbers_of(log.after(5)), std::vector<int64_t>());
  for (int i = 1; i <= 5; ++i) log.add({.decode_rows = i, .prompt_rows = 10, .stalled = 1});
  EXPECT_EQ(log.after(0).find("last")->as_integer(), 5);
  EXPECT_EQ(numbers_of(log.after(0)), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(numbers_of(log.after(3)), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(numbers_of(log.after(-7)), numbers_of(log.after(0)));
  EXPECT_EQ(numbers_of(log.after(INT64_MAX)), std::vector<int64_t>());
  const json::Value third = log.after(2).find("steps")->as_array()[0];
  const json::Value columns = *log.after(2).find("columns");
  ASSERT_EQ(third.as_array().size(), columns.as_array().size());
  for (size_t i = 0; i < columns.as_array().size(); ++i)
    if (columns.as_array()[i] == json::Value("decode_rows")) {
      EXPECT_EQ(third.as_array()[i].as_integer(), 3);
    }
  EXPECT_EQ(log.totals().decode_rows, 15);
  EXPECT_EQ(log.totals().prompt_rows, 50);
  EXPECT_EQ(log.totals().stalls, 5);
}

TEST(StepLog, ForgetsTheOldestAndCountsOn) {
  StepLog log;
  for (int i = 0; i < 5000; ++i) log.add({.decode_rows = 1});
  const std::vector<int64_t> numbers = numbers_of(log.after(0));
  EXPECT_EQ(numbers.size(), 4096u);
  EXPECT_EQ(numbers.front(), 905);
  EXPECT_EQ(numbers.back(), 5000);
  EXPECT_EQ(log.totals().decode_rows, 5000);
}

TEST(RecentValues, QuantilesAreOfTheLastOnes) {
  RecentValues values;
  EXPECT_TRUE(values.summary().find("p50")->is_null());
  values.add(7);
  EXPECT_EQ(values.summary().find("p99")->as_number(), 7);
  for (int i = 1; i <= 100; ++i) values.add(i);
  EXPECT_EQ(values.summary().find("count")->as_integer(), 101);
  for (int i = 0; i < 2048; ++i) values.add(1000 + i % 100);
  const json::Value summary = values.summary();
  EXPECT_EQ(summary.find("count")->as_integer(), 2048);
  EXPECT_GE(summary.find("p50")->as_number(), 1000);
  EXPECT_EQ(summary.find("p99")->as_number(), 1098);
}

// As a trace's readers take it: with its end once the server has ended, and without before.
TEST(StepTrace, IsAListOfSlicesAndCounters) {
  const std::string file = testing::TempDir() + "step_trace_test_" + std::to_string(getpid());
  { const StepTrace empty(file); }
  EXPECT_EQ(json::parse_file(file).as_array().size(), 0u);
  {
    StepTrace trace(file);
    trace.add({.end_ns = 5000, .ns = 2000, .decode_rows = 1, .tokens = 1});
    trace.add({.end_ns = 9000, .ns = 3000, .engine = 1, .prompt_rows = 7, .waiting = 2});
  }
  const json::Value whole = json::parse_file(file);
  std::vector<double> begins, lengths;
  for (const json::Value& event : whole.as_array())
    if (*event.find("ph") == json::Value("X")) {
      begins.push_back(event.find("ts")->as_number());
      lengths.push_back(event.find("dur")->as_number());
    }
  EXPECT_EQ(begins, (std::vector<double>{3, 6}));
  EXPECT_EQ(lengths, (std::vector<double>{2, 3}));
  std::filesystem::remove(file);
  EXPECT_THROW(StepTrace("/nowhere/trace.json"), Error);
}

}  // namespace
}  // namespace invar::server
