// Which steps a device does within a target, on devices whose cost is known.
#include "engine/step_budget.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace invar {
namespace {

struct Found {
  int rows;
  double spent;
};

Found search(double target, int most, double once, double per_row) {
  Found found{0, 0};
  found.rows = rows_within(target, most, [&](int rows) {
    const double seconds = once + per_row * rows;
    found.spent += seconds;
    return seconds;
  });
  return found;
}

TEST(StepBudget, IsWhatFitsIntoTheTarget) {
  for (const double target : {0.05, 0.2, 1.0})
    for (const double per_row : {1e-5, 1e-4, 6e-4, 2e-3}) {
      const Found found = search(target, 2048, 1e-3, per_row);
      const double step = 1e-3 + per_row * found.rows;
      EXPECT_EQ(found.rows % 32, 0);
      EXPECT_TRUE(step <= target || found.rows == 32) << found.rows;
      // No more than a fifth below the target, and nothing is left where all rows fit.
      EXPECT_TRUE(found.rows == 2048 || step + 32 * per_row > 0.78 * target) << found.rows;
      // Two runs of steps that double, the last of less than a quarter of the target, unless the
      // first is longer.
      EXPECT_LT(found.spent, 1.1 * std::max(target, 2 * (1e-3 + 32 * per_row)));
    }
}

TEST(StepBudget, OfASlowDeviceIsTheLeastThatIsWorthAStep) {
  EXPECT_EQ(search(0.2, 2048, 0.5, 0.1).rows, 32);
  EXPECT_EQ(search(0.2, 16, 0.5, 0.1).rows, 16);
  EXPECT_EQ(search(0.2, 100, 0, 1e-9).rows, 100 / 32 * 32);
}

// A GPU's steps of few rows all take as long as reading the weights.
TEST(StepBudget, OfADeviceWhoseSmallStepsTakeTheSame) {
  const auto seconds_of = [](int rows) { return std::max(4.5e-3, 25e-6 * rows); };
  for (const double target : {0.006, 0.012, 0.025, 0.05}) {
    const int rows = rows_within(target, 2048, seconds_of, 0.8);
    EXPECT_LE(seconds_of(rows), 0.8 * target) << target;
    EXPECT_GT(seconds_of(rows + 32), 0.7 * target) << target;
  }
  EXPECT_EQ(rows_within(0.1, 2048, seconds_of, 0.8), 2048);
  EXPECT_EQ(rows_within(0.004, 2048, seconds_of, 0.8), 32);
  // Steps of a fraction of the target would say that every row costs.
  EXPECT_LT(rows_within(0.025, 2048, seconds_of), 300);
}

TEST(StepBudget, OfAModelIsMeasured) {
  Model model({.model = "tiny", .load_format = "dummy:7", .threads = 2});
  const int rows = rows_within(0.005, 2048, 512, model);
  EXPECT_GE(rows, 32);
  EXPECT_LE(rows, 512);
  EXPECT_EQ(rows_within(1000.0, 2048, 512, model), 512);
}

}  // namespace
}  // namespace invar
