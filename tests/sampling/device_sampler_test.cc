// The table's `sample` and `hash_logits`, by the scalar definition here and on a GPU in tests/cuda,
// against what the host does with logits.
#include "device_sampler_cases.h"

#include "base/thread_pool.h"

namespace invar {
namespace {

using namespace testing_sampling;

class DeviceSamplerTest : public ::testing::Test {
 protected:
  const std::unique_ptr<Device> host_ = make_host_device();
  const std::unique_ptr<Stream> stream_ = host_->make_stream();
  ThreadPool pool_{2};
  const Kernels kernels_ = select_kernels(Order::portable, "scalar");
  DeviceSampler tested_{
      kernels_.sample, {host_.get(), stream_.get(), &pool_}, kRows, kernels_.hash_logits};
};

TEST_F(DeviceSamplerTest, GivesWhatTheHostGives) {
  for (const int64_t vocab : {1, 5, 320, 1000, 5000})
    check_all(
        tested_, vocab, [](const std::vector<float>& x) { return x.data(); }, 20);
}

// Each of these inputs decides something: with another one the results differ.
TEST_F(DeviceSamplerTest, EveryInputCounts) {
  const ScopedFlushToZero flush;
  constexpr int64_t kVocab = 1000;
  const std::vector<float> logits = rows_of_logits(kVocab, 2);
  std::vector<float> row(logits.begin() + 8 * kVocab, logits.begin() + 9 * kVocab);
  const auto tokens = [&](auto change) {
    std::vector<int32_t> tokens;
    for (int32_t position = 0; position < 40; ++position) {
      SamplingParams params{.temperature = 4.0, .seed = 5};
      TokenHistory history;
      for (int32_t token = 0; token < 500; ++token) history.push(token);
      SampleInput input{.params = &params, .position = position, .history = &history};
      change(params, input);
      tokens.push_back(tested_.sample(row.data(), kVocab, {&input, 1})[0].token);
    }
    return tokens;
  };
  const auto plain = tokens([](auto&, auto&) {});
  EXPECT_EQ(tokens([](auto&, auto&) {}), plain);
  EXPECT_NE(tokens([](auto& p, auto&) { p.seed = 6; }), plain);
  EXPECT_NE(tokens([](auto& p, auto&) { p.top_k = 5; }), plain);
  EXPECT_NE(tokens([](auto& p, auto&) { p.top_p = 0.5; }), plain);
  EXPECT_NE(tokens([](auto& p, auto&) { p.min_p = 0.5; }), plain);
  EXPECT_NE(tokens([](auto& p, auto&) { p.repetition_penalty = 3; }), plain);
  EXPECT_NE(tokens([](auto& p, auto&) { p.presence_penalty = 2; }), plain);
  EXPECT_NE(tokens([](auto& p, auto&) { p.logit_bias = {{3, 50.0}}; }), plain);
  EXPECT_NE(tokens([](auto& p, auto&) { p.allowed_token_ids = {3, 4, 900}; }), plain);
  EXPECT_NE(tokens([](auto&, auto& in) { in.choice = 1; }), plain);
  const std::vector<uint64_t> mask((kVocab + 63) / 64, 1);
  EXPECT_NE(tokens([&](auto&, auto& in) { in.allowed = mask; }), plain);
}

TEST_F(DeviceSamplerTest, ManyLogprobsNeedTheHost) {
  const SamplingParams params;
  EXPECT_TRUE(DeviceSampler::can({.params = &params, .logprobs = kMostTop}));
  EXPECT_FALSE(DeviceSampler::can({.params = &params, .logprobs = kMostTop + 1}));
}

// Filters change the row that they are of.
TEST_F(DeviceSamplerTest, ScaledLogprobsBesideFiltersNeedTheHost) {
  SamplingParams params{.logprobs_mode = LogprobsMode::scaled_logprobs};
  EXPECT_TRUE(DeviceSampler::can({.params = &params, .logprobs = 0}));
  params.top_k = 5;
  EXPECT_FALSE(DeviceSampler::can({.params = &params, .logprobs = 0}));
  EXPECT_TRUE(DeviceSampler::can({.params = &params}));
  EXPECT_TRUE(DeviceSampler::can({.params = &params, .logprobs = 0, .given = 3})) << "a prompt's";
}

}  // namespace
}  // namespace invar
