// Drafts that are sampled where the logits lie, by a host that plays the device: each walk ends as
// it does where the host reads the logits.
#include "engine/sampling_stage.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/reference/reference.h"
#include "kernels/select.h"
#include "speculative/draft_tree.h"

namespace invar {
namespace {

constexpr int kVocab = 12, kRows = 256;  // few words, so that drafts are often right

struct Step {
  std::vector<Request> requests;
  std::vector<DraftTree> trees;
  std::vector<float> logits;
};

DraftTree random_tree(std::mt19937& random) {
  DraftTree tree;
  for (int tries = static_cast<int>(random() % 25); tries > 0; --tries) {
    const int32_t parent = static_cast<int32_t>(random() % (tree.size() + 1)) - 1;
    const auto token = static_cast<int32_t>(random() % kVocab);
    if (child_with(tree, parent, token) < 0) tree.push_back({token, parent});
  }
  return tree;
}

Step random_step(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Step step;
  size_t rows = 0;
  for (int i = 0; i < 6; ++i) {
    Request& r = step.requests.emplace_back();
    r.id = i;
    r.prompt = {1, static_cast<int32_t>(random() % kVocab), 3};
    r.params.temperature = i % 3 ? 0.8 : 0;
    r.params.max_tokens = 1 + static_cast<int32_t>(random() % 6);
    r.params.min_tokens = static_cast<int32_t>(random() % 3);
    if (i % 2) r.params.logprobs = 2;
    r.params.logprobs_mode = static_cast<LogprobsMode>((seed + static_cast<uint32_t>(i)) % 5);
    if (i == 4) r.params.logit_bias = {{3, 1.5}};
    if (i == 5) r.params.stop_token_ids = {2, 5};
    r.params.min_tokens = std::min(r.params.min_tokens, r.params.max_tokens);
    r.params.seed = random();
    r.choice = i;
    r.hash_logits = i != 2;
    step.trees.push_back(random_tree(random));
    rows += 1 + step.trees.back().size();
  }
  step.logits.resize(rows * kVocab);
  for (float& x : step.logits) x = 2.0F * normal(random);
  return step;
}

struct Ended {
  std::vector<int32_t> tokens;
  std::vector<Digest> hashes;
  std::vector<std::optional<TokenLogprobs>> logprobs;
  std::vector<FinishReason> finish;
  bool operator==(const Ended&) const = default;
};

class SamplingStageTest : public testing::Test {
 protected:
  std::vector<Ended> run(const Step& step, bool on_device) {
    std::unique_ptr<DeviceSampler> sampler;
    if (on_device)
      sampler = std::make_unique<DeviceSampler>(device_kernels_.sample,
                                                Execution{host_.get(), stream_.get(), &pool_},
                                                kRows, device_kernels_.hash_logits);
    SamplingStage stage(kernels_, pool_, kVocab, std::move(sampler), kRows);
    std::vector<std::unique_ptr<RequestState>> states;
    stage.begin();
    int32_t row = 0;
    for (size_t i = 0; i < step.requests.size(); ++i) {
      states.push_back(std::make_unique<RequestState>(step.requests[i], kVocab));
      RequestState& state = *states.back();
      stage.add_walk(state, state.prompt_size(), row, row, &step.trees[i]);
      row += 1 + static_cast<int32_t>(step.trees[i].size());
    }
    const std::unique_ptr<bool[]> non_finite(new bool[static_cast<size_t>(row)]());
    const std::span<const bool> none(non_finite.get(), static_cast<size_t>(row));
    EXPECT_EQ(stage.samples_on_device(), on_device);
    if (on_device) {
      stage.start_on_device(step.logits.data());
      stage.finish_on_device(none);
    } else {
      stage.take_logits(0, step.logits, none);
    }
    std::vector<Ended> all;
    for (const SamplingStage::Walk& walk : stage.walks()) {
      Ended& ended = all.emplace_back();
      for (const TokenOutput& output : walk.outputs) {
        ended.tokens.push_back(output.token);
        ended.hashes.push_back(output.logits_hash);
        ended.logprobs.push_back(output.logprobs);
        ended.finish.push_back(output.finish);
      }
    }
    return all;
  }

  const std::unique_ptr<Device> host_ = make_host_device();
  const std::unique_ptr<Stream> stream_ = host_->make_stream();
  ThreadPool pool_{2};
  const Kernels kernels_ = select_kernels(Order::portable, "auto");
  const Kernels device_kernels_ = reference::table(Order::portable);
};

TEST_F(SamplingStageTest, DraftsAreSampledOnADeviceAsByTheHost) {
  int accepted = 0, branches = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const Step step = random_step(seed);
    const std::vector<Ended> host = run(step, false);
    ASSERT_EQ(run(step, true), host) << "step " << seed;
    for (const Ended& walk : host) {
      accepted += walk.tokens.size() > 1;
      branches += walk.tokens.size() > 2;
    }
  }
  EXPECT_GT(accepted, 200);
  EXPECT_GT(branches, 20);
}

}  // namespace
}  // namespace invar
