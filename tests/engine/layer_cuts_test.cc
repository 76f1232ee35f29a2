// Where the stages of a pipeline begin.
#include "engine/layer_cuts.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "model/families/presets.h"

namespace invar {
namespace {

TEST(LayerCuts, CountTheHead) {
  // A layer of Qwen3-8B has 193 M elements, half its head 311 M, as much as 1.6 layers.
  DecoderSpec spec = preset_spec("qwen3-8b");
  EXPECT_EQ(balanced_cuts(spec, 1), std::vector<int>{});
  EXPECT_EQ(balanced_cuts(spec, 2), std::vector<int>{19});
  EXPECT_EQ(balanced_cuts(spec, 4), (std::vector<int>{10, 20, 30}));
  spec.vocab = 64;  // the control: hardly any head, so that the layers are as many
  EXPECT_EQ(balanced_cuts(spec, 2), std::vector<int>{18});
}

TEST(LayerCuts, CountTheExpertsThatAreRead) {
  // The first layer of DeepSeek-V2-Lite has one feed-forward network and no experts.
  const DecoderSpec spec = preset_spec("deepseek-v2-lite");
  EXPECT_EQ(balanced_cuts(spec, 3), (std::vector<int>{10, 19}));
}

TEST(LayerCuts, LeaveNoStageEmpty) {
  DecoderSpec spec = preset_spec("qwen3-8b");
  spec.layers = 3;
  spec.layer_specs.resize(3);
  EXPECT_EQ(balanced_cuts(spec, 3), (std::vector<int>{1, 2}));
  EXPECT_THROW(balanced_cuts(spec, 4), UsageError);
  EXPECT_THROW(balanced_cuts(spec, 0), UsageError);
}

}  // namespace
}  // namespace invar
