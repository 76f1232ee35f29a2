#include "scheduler/step_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "base/fields.h"
#include "scheduler/step_work.h"

namespace invar {
namespace {

StepPlan random_plan(std::mt19937& random) {
  StepPlan plan;
  plan.number = random();
  for (int i = random() % 5; i > 0; --i) {
    const bool samples = random() % 2;
    plan.entries.push_back({.id = int64_t(random()),
                            .sequence = static_cast<int32_t>(random() % 100),
                            .start = static_cast<int32_t>(random() % 1000),
                            .rows = static_cast<int32_t>(1 + random() % 100),
                            .drafts = samples ? static_cast<int32_t>(random() % 4) : 0,
                            .samples = samples});
  }
  for (int i = random() % 3; i > 0; --i) plan.admitted.push_back(random());
  for (int i = random() % 3; i > 0; --i) plan.preempted.push_back(random());
  return plan;
}

TEST(StepPlan, ThroughBytesAndBack) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const StepPlan plan = random_plan(random);
    EXPECT_EQ(from_bytes<StepPlan>(to_bytes(plan), "a step plan"), plan);
  }
}

TEST(StepWork, CountsWhatTheLayersSee) {
  StepPlan plan;
  plan.entries = {{.start = 90, .rows = 20}, {.start = 250, .rows = 1, .samples = true}};
  const auto count = [&](std::vector<LayerWindow> windows) {
    int64_t prompt = 0, decode = 0, layers = 0;
    for (const LayerWindow& w : windows) {
      layers += w.layers;
      for (int p = 90; p < 110; ++p)
        prompt += w.layers * (w.window ? std::min(w.window, p + 1) : p + 1);
      decode += w.layers * (w.window ? std::min(w.window, 251) : 251);
    }
    const StepWork work = work_of(plan, windows);
    EXPECT_EQ(work.prompt_slots, prompt / layers);
    EXPECT_EQ(work.decode_slots, decode / layers);
    EXPECT_EQ(work.rows(), 21);
  };
  for (const int window : {0, 1, 50, 90, 91, 100, 109, 110, 200, 251, 300}) count({{window, 3}});
  count({{100, 5}, {0, 1}, {200, 2}});
  EXPECT_EQ(work_of(plan).decode_slots, 251);
}

TEST(StepPlan, MalformedBytesAreRefused) {
  std::mt19937 random(2);
  int refused = 0, read = 0;
  for (int i = 0; i < 50; ++i) {
    const std::string bytes = to_bytes(random_plan(random));
    for (size_t n = 0; n < bytes.size(); ++n)
      EXPECT_THROW(from_bytes<StepPlan>(std::string_view(bytes).substr(0, n), "a step plan"),
                   Error);
    EXPECT_THROW(from_bytes<StepPlan>(bytes + '\0', "a step plan"), Error);
    for (int k = 0; k < 200; ++k) {
      std::string broken = bytes;
      broken[random() % broken.size()] = static_cast<char>(random());
      try {
        from_bytes<StepPlan>(broken, "a step plan");
        ++read;
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace invar
