#include "cli/switch_flag.h"

#include <gtest/gtest.h>

namespace invar::cli {
namespace {

std::optional<bool> parsed(const std::string& line) {
  CLI::App app;
  std::optional<bool> value;
  add_switch(app, "async-scheduling", value, "");
  app.parse(line);
  return value;
}

TEST(SwitchFlag, IsEmptyUnlessGiven) {
  EXPECT_EQ(parsed(""), std::nullopt);
  EXPECT_EQ(parsed("--async-scheduling"), true);
  EXPECT_EQ(parsed("--no-async-scheduling"), false);
}

}  // namespace
}  // namespace invar::cli
