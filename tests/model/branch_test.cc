// A second stream beside the first one: whatever order a device draws from those that the streams'
// events allow, a step's logits have the bits of the host.
#include <gtest/gtest.h>

#include "kernels/select.h"
#include "small_spec.h"
#include "step_case.h"
#include "support/deferred_device.h"

namespace invar {
namespace {

using testing_model::small_spec;
using testing_model::StepCase;

// Layers whose gates and shared experts go beside the rest.
DecoderSpec forking_spec() {
  DecoderSpec spec = small_spec(64, 3);
  const RecurrentSpec mixer{
      .key_heads = 2, .heads = 4, .key_size = 24, .value_size = 32, .taps = 4};
  const ExpertsSpec experts{
      .routing = {.experts = 4, .chosen = 2}, .width = 32, .shared_width = 32, .shared_gate = true};
  const LayerSpec recurrent{.parts = {mixer, experts}};
  spec.layer_specs = {recurrent, {.parts = {AttentionSpec{}, experts}}, recurrent};
  return spec;
}

std::vector<float> some_steps(StepCase& steps, StepGraphs* graphs = nullptr) {
  std::vector<float> all;
  for (const int rows : {20, 1, 1, 1, 5, 1}) {
    const auto logits = steps.logits(steps.batch(rows, 1), graphs);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

class BranchTest : public ::testing::TestWithParam<Order> {
 protected:
  const std::unique_ptr<Device> host_ = make_host_device();
  ThreadPool pool_{1};
};
INSTANTIATE_TEST_SUITE_P(Orders, BranchTest, ::testing::Values(Order::portable, Order::hopper),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(BranchTest, AnyOrderOfTwoStreamsGivesTheBitsOfTheHost) {
  const DecoderSpec spec = forking_spec();
  StepCase expected(*host_, select_kernels(GetParam(), "auto"), &pool_, spec);
  const auto wanted = some_steps(expected);
  int wrong = 0;  // where streams do not wait for each other, the control
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const auto device = make_deferred_device({.seed = seed});
    StepCase launched(*device, deferred_kernels(GetParam()), nullptr, spec);
    EXPECT_EQ(some_steps(launched), wanted) << seed;
    StepCase recorded(*device, deferred_kernels(GetParam()), nullptr, spec);
    StepGraphs graphs;
    EXPECT_EQ(some_steps(recorded, &graphs), wanted) << seed;
    EXPECT_EQ(graphs.launched(), 3) << seed;

    const auto hasty = make_deferred_device({.seed = seed, .waits = false});
    StepCase control(*hasty, deferred_kernels(GetParam()), nullptr, spec);
    wrong += some_steps(control) != wanted;
  }
  EXPECT_GT(wrong, 4);
}

}  // namespace
}  // namespace invar
