// Samples on the GPU against the host's.
#include "base/thread_pool.h"
#include "cuda_check.h"
#include "sampling/device_sampler.h"

namespace invar {
namespace {

using Samples = CudaTest;

TEST_F(Samples, TokensOfTheHost) {
  const ScopedFlushToZero flush;
  Random random(1);
  Sampler host;
  DeviceSampler device(cuda::kernels(Order::portable).sample, on(), 12);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int64_t vocab : {1, 5, 320, 32000, 151936}) {
    const int64_t rows = 12;
    Twin<float> logits(gpu(), rows * vocab);
    for (float& x : logits.host) x = 6.0f * random.uniform();
    std::fill_n(logits.host.begin() + vocab, vocab, 1.0f);  // ties
    std::fill_n(logits.host.begin() + 2 * vocab, vocab, -infinity);
    logits.host[3 * vocab + vocab / 2] = std::numeric_limits<float>::quiet_NaN();
    logits.host[4 * vocab + vocab / 3] = infinity;
    logits.host[5 * vocab] = -infinity;
    logits.upload();
    for (const double temperature : {0.0, 0.01, 0.8, 4.0}) {
      const SamplingParams params{.temperature = temperature, .seed = 0x123456789abcdef0};
      std::vector<SampleInput> inputs;
      for (int32_t row = 0; row < rows; ++row)
        inputs.push_back({.params = &params, .position = 70000 + row, .choice = row % 3});
      const auto found = device.sample(logits.device(), vocab, inputs);
      ASSERT_EQ(std::ssize(found), rows);
      for (int64_t row = 0; row < rows; ++row) {
        inputs[row].logits = std::span<const float>(logits.host).subspan(row * vocab, vocab);
        const Sampled expected = host.sample(inputs[row]);
        EXPECT_EQ(found[row].token, expected.token) << vocab << " " << temperature << " " << row;
        EXPECT_STREQ(found[row].error, expected.error) << vocab << " " << temperature << " " << row;
      }
    }
  }
}

TEST_F(Samples, WhatNeedsTheHost) {
  SamplingParams params{.temperature = 1.0};
  EXPECT_TRUE(DeviceSampler::can({.params = &params}));
  const auto refused = [](auto change) {
    SamplingParams changed{.temperature = 1.0};
    change(changed);
    return !DeviceSampler::can({.params = &changed});
  };
  EXPECT_TRUE(refused([](auto& p) { p.top_k = 5; }));
  EXPECT_TRUE(refused([](auto& p) { p.top_p = 0.9; }));
  EXPECT_TRUE(refused([](auto& p) { p.min_p = 0.1; }));
  EXPECT_TRUE(refused([](auto& p) { p.min_tokens = 3; }));
  EXPECT_TRUE(refused([](auto& p) { p.repetition_penalty = 1.1; }));
  EXPECT_TRUE(refused([](auto& p) { p.logit_bias = {{1, 2.0}}; }));
  const uint64_t mask = 1;
  EXPECT_FALSE(DeviceSampler::can({.params = &params, .allowed = {&mask, 1}}));
}

}  // namespace
}  // namespace invar
