// Steps whose rows have adapters, for tests of devices: graphs are good for other adapters.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "../support/adapter_files.h"
#include "model/adapter_weights.h"
#include "step_case.h"
#include "weights/lora_adapter.h"

namespace invar::testing_model {

// Beside every matrix that can have one, or beside q and v alone.
inline AdapterLoad made_load(int32_t slot, uint32_t seed, int rank, bool all = true) {
  std::vector<testing_adapter::Module> modules;
  for (const AdapterModule& module : adaptable_modules(preset_spec("tiny"), AdapterUser::gpu))
    if (all || module.name.ends_with("q_proj") || module.name.ends_with("v_proj"))
      modules.push_back({module.name, module.outputs, module.inputs});
  const auto directory =
      std::filesystem::path(::testing::TempDir()) /
      ("adapter_steps_" + std::to_string(::getpid()) + "_" + std::to_string(seed));
  testing_adapter::write(directory, modules, {.seed = seed, .rank = rank});
  ThreadPool pool(1);
  return {.slot = slot,
          .rank = rank,
          .directory = directory.string(),
          .digest = to_hex(LoraAdapter(directory.string()).digest(pool))};
}

// Both take the same steps; `found` launches graphs where it can.
class AdapterSteps {
 public:
  AdapterSteps(StepCase& expected, StepCase& found) : expected_(expected), found_(found) {}

  // A row of each sequence, with the adapters of these slots.
  void step(const std::vector<int32_t>& slots, const std::vector<AdapterLoad>& loads = {},
            int rows = 1) {
    const auto with = [&](Batch batch) {
      for (size_t s = 0; s < slots.size(); ++s) batch.sequences[s].adapter = slots[s];
      batch.adapters = loads;
      return batch;
    };
    const auto wanted = expected_.logits(with(expected_.batch(rows, 1)));
    const auto found = found_.logits(with(found_.batch(rows, 1)), &graphs_);
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i)
      ASSERT_TRUE(found[i] == wanted[i] || (std::isnan(found[i]) && std::isnan(wanted[i]))) << i;
    last_ = found;
  }
  int64_t launched() const { return graphs_.launched(); }
  const std::vector<float>& last() const { return last_; }

 private:
  StepCase &expected_, &found_;
  StepGraphs graphs_;
  std::vector<float> last_;
};

inline void expect_adapters_in_graphs(StepCase& expected, StepCase& found) {
  AdapterSteps steps(expected, found);
  steps.step({0, 1, -1}, {made_load(0, 1, 16), made_load(1, 2, 3, false)}, 20);
  // The first one takes memory, the second is seen, then they are graphs: of other rows, too.
  for (const std::vector<int32_t>& slots :
       {std::vector<int32_t>{0, 1, -1}, {0, 1, -1}, {0, 1, -1}, {1, -1, 0}, {-1, 0, 1}})
    steps.step(slots);
  EXPECT_EQ(steps.launched(), 4);
  steps.step({0, 1, -1}, {made_load(0, 3, 16)});  // another one in the slot
  EXPECT_EQ(steps.launched(), 5);
  steps.step({-1, -1, -1});
  steps.step({1, 1, 1});
  EXPECT_EQ(steps.launched(), 5);
  // A wider one needs other memory; one that is gone breaks its rows alone, in no graph.
  steps.step({2, 1, -1}, {made_load(2, 4, 40)});
  AdapterLoad gone = made_load(0, 5, 16);
  gone.digest = made_load(0, 6, 16).digest;
  for (int i = 0; i < 3; ++i) {
    steps.step({0, 1, -1}, i == 0 ? std::vector{gone} : std::vector<AdapterLoad>());
    const size_t vocab = steps.last().size() / StepCase::kSequences;
    EXPECT_TRUE(std::isnan(steps.last()[0]));
    EXPECT_FALSE(std::isnan(steps.last()[vocab]));
  }
  EXPECT_EQ(steps.launched(), 5);
  for (int i = 0; i < 3; ++i) steps.step({2, 1, -1});
  EXPECT_GT(steps.launched(), 5);
}

}  // namespace invar::testing_model
