#include "server/histogram.h"

#include <gtest/gtest.h>

namespace invar::server {
namespace {

// Buckets count what is as large as their bound or smaller, those before them included.
TEST(Histogram, CountsValuesBySize) {
  Histogram sizes({1, 10});
  for (const double value : {0.5, 1.0, 1.5, 10.0, 11.0}) sizes.add(value);
  std::string text;
  sizes.print("sizes", "a=\"b\"", text);
  EXPECT_NE(text.find("sizes_bucket{a=\"b\",le=\"1\"} 2\n"), std::string::npos) << text;
  EXPECT_NE(text.find("sizes_bucket{a=\"b\",le=\"10\"} 4\n"), std::string::npos) << text;
  EXPECT_NE(text.find("sizes_bucket{a=\"b\",le=\"+Inf\"} 5\n"), std::string::npos) << text;
  EXPECT_NE(text.find("sizes_sum{a=\"b\"} 24\n"), std::string::npos) << text;
  EXPECT_NE(text.find("sizes_count{a=\"b\"} 5\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace invar::server
