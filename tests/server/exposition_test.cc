#include "server/exposition.h"

#include <gtest/gtest.h>

#include "server/metrics.h"

namespace invar::server {
namespace {

using namespace std::chrono_literals;

TEST(Histogram, ABoundIsPartOfItsBucketAndCountsAddUp) {
  Histogram histogram({1, 2.5});
  for (const double value : {0.5, 1.0, 1.5, 2.5, 2.75}) histogram.add(value);
  std::string out;
  histogram.print("name", "a=\"b\"", out);
  EXPECT_EQ(out,
            "name_bucket{a=\"b\",le=\"1\"} 2\nname_bucket{a=\"b\",le=\"2.5\"} 4\n"
            "name_bucket{a=\"b\",le=\"+Inf\"} 5\nname_sum{a=\"b\"} 8.25\nname_count{a=\"b\"} 5\n");
  out.clear();
  Histogram({}).print("none", "", out);
  EXPECT_EQ(out, "none_bucket{le=\"+Inf\"} 0\nnone_sum{} 0\nnone_count{} 0\n");
}

TEST(Exposition, LinesHaveTheLabelsOfAllAndTheirOwn) {
  Exposition out("model=\"m\"");
  out.counter("one", "Of something.", 3);
  out.type("two", "gauge", "Of more.");
  out.line("two", 0.5, "kind=\"a\"");
  EXPECT_EQ(out.take(),
            "# HELP one Of something.\n# TYPE one counter\none{model=\"m\"} 3\n"
            "# HELP two Of more.\n# TYPE two gauge\ntwo{model=\"m\",kind=\"a\"} 0.5\n");
  Exposition plain("");
  plain.gauge("three", "Of it.", 1);
  plain.line("three", 2, "kind=\"b\"");
  EXPECT_EQ(plain.take(),
            "# HELP three Of it.\n# TYPE three gauge\nthree 1\nthree{kind=\"b\"} 2\n");
}

TEST(Exposition, ALabelCannotEndItsLine) {
  EXPECT_EQ(escaped_label("a\"b\\c\nd"), "a\\\"b\\\\c d");
}

// The value behind `name` in the text.
std::string value_of(const std::string& text, const std::string& name) {
  const size_t at = text.find("\n" + name + "{");
  if (at == std::string::npos) return "none";
  const size_t begin = text.find("} ", at) + 2;
  return text.substr(begin, text.find('\n', begin) - begin);
}

TEST(Metrics, TheTimesOfARequestAreTakenApart) {
  Metrics metrics;
  const Clock::time_point begin = Clock::now();
  metrics.add({.arrival = begin,
               .scheduled = begin + 1s,
               .first_token = begin + 3s,
               .last_token = begin + 11s,
               .end = begin + 16s},
              5);
  metrics.add({.arrival = begin, .end = begin + 32s}, 0);  // it never ran
  metrics.all_generation_tokens = 5;
  metrics.finished["stop"] = 1;
  const std::string text = metrics.text("m\"", {}, {.blocks = 8, .free_blocks = 2}, {}, 3, 4);
  const auto sum = [&](const char* name) {
    return value_of(text, "vllm:" + std::string(name) + "_sum");
  };
  EXPECT_EQ(sum("request_queue_time_seconds"), "1");
  EXPECT_EQ(sum("request_prefill_time_seconds"), "2");
  EXPECT_EQ(sum("request_decode_time_seconds"), "8");
  EXPECT_EQ(sum("request_inference_time_seconds"), "10");
  EXPECT_EQ(sum("request_time_per_output_token_seconds"), "2");
  EXPECT_EQ(sum("e2e_request_latency_seconds"), "48");
  EXPECT_EQ(value_of(text, "vllm:generation_tokens_total"), "5");
  EXPECT_EQ(value_of(text, "vllm:request_success_total"), "1");
  EXPECT_EQ(value_of(text, "vllm:kv_cache_usage_perc"), "0.75");
  EXPECT_EQ(value_of(text, "invar:connections"), "3");
  EXPECT_EQ(value_of(text, "invar:answers"), "4");
  EXPECT_NE(text.find("model_name=\"m\\\"\""), text.npos);
}

}  // namespace
}  // namespace invar::server
