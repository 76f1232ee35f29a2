#include "server/request_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"

namespace invar::server {
namespace {

using namespace std::chrono_literals;

Admitted admitted() {
  Admitted one{.entry = {.id = "cmpl-1", .endpoint = "/v1/completions"}};
  one.entry.params.seed = 7;
  one.head.model = "m";
  one.requests.resize(2);
  return one;
}

TEST(RequestLog, HasALineForEachRequest) {
  const std::string file = testing::TempDir() + "request_log_test_" + std::to_string(getpid());
  std::remove(file.c_str());
  const Clock::time_point begin = Clock::now();
  const RequestTimes times{.arrival = begin,
                           .scheduled = begin + 5ms,
                           .first_token = begin + 20ms,
                           .last_token = begin + 80ms,
                           .end = begin + 90ms};
  RequestLog(file).add(admitted(), times, 30, 12, "length");
  RequestLog(file).add(admitted(), {.arrival = begin, .end = begin + 3ms}, 30, 0, "abort");
  const std::string text = read_whole_file(file);
  ASSERT_EQ(std::ranges::count(text, '\n'), 2);
  const size_t end = text.find('\n');
  const json::Value first = json::parse(text.substr(0, end), "a line"),
                    second = json::parse(text.substr(end + 1), "a line");
  EXPECT_EQ(*first.find("id"), json::Value("cmpl-1"));
  EXPECT_EQ(*first.find("answers"), json::Value(int64_t{2}));
  EXPECT_EQ(*first.find("seed"), json::Value(int64_t{7}));
  EXPECT_EQ(*first.find("finish"), json::Value("length"));
  EXPECT_EQ(*first.find("queue_ms"), json::Value(int64_t{5}));
  EXPECT_EQ(*first.find("first_token_ms"), json::Value(int64_t{20}));
  EXPECT_EQ(*first.find("total_ms"), json::Value(int64_t{90}));
  // What did not come is null and not the time since the clock began.
  EXPECT_TRUE(second.find("queue_ms")->is_null());
  EXPECT_TRUE(second.find("first_token_ms")->is_null());
  EXPECT_EQ(*second.find("total_ms"), json::Value(int64_t{3}));
}

TEST(RequestLog, WhatCannotBeWrittenIsSaid) {
  EXPECT_THROW(RequestLog("/nowhere/at/all.jsonl"), Error);
}

}  // namespace
}  // namespace invar::server
