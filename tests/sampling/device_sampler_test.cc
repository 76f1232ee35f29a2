// The table's `sample`, by the scalar definition here and on a GPU in tests/cuda, against Sampler.
#include "sampling/device_sampler.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "base/thread_pool.h"
#include "kernels/select.h"

namespace invar {
namespace {

TEST(DeviceSampler, GivesTheTokensOfTheSampler) {
  const ScopedFlushToZero flush;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int32_t kRows = 8;
  const auto host = make_host_device();
  const auto stream = host->make_stream();
  ThreadPool pool(2);
  DeviceSampler tested(select_kernels(Order::portable, "scalar").sample,
                       {host.get(), stream.get(), &pool}, kRows);
  Sampler sampler;
  std::mt19937 random(1);
  for (const int64_t vocab : {1, 5, 320, 1000}) {
    std::vector<float> logits(kRows * vocab);
    for (float& x : logits) x = std::uniform_real_distribution<float>(-6, 6)(random);
    std::fill_n(logits.begin() + vocab, vocab, 1.0f);  // ties
    std::fill_n(logits.begin() + 2 * vocab, vocab, -kInfinity);
    logits[3 * vocab + vocab / 2] = std::numeric_limits<float>::quiet_NaN();
    logits[4 * vocab + vocab / 3] = kInfinity;
    logits[5 * vocab] = -kInfinity;
    for (const double temperature : {0.0, 0.01, 0.8, 4.0}) {
      const SamplingParams params{.temperature = temperature, .seed = 0x123456789abcdef0};
      std::vector<SampleInput> inputs;
      for (int32_t row = 0; row < kRows; ++row)
        inputs.push_back({.params = &params, .position = 70000 + row, .choice = row % 3});
      const auto found = tested.sample(logits.data(), vocab, inputs);
      ASSERT_EQ(std::ssize(found), kRows);
      for (int32_t row = 0; row < kRows; ++row) {
        inputs[row].logits = std::span<const float>(logits).subspan(row * vocab, vocab);
        const Sampled expected = sampler.sample(inputs[row]);
        EXPECT_EQ(found[row].token, expected.token) << vocab << " " << temperature << " " << row;
        EXPECT_STREQ(found[row].error, expected.error) << vocab << " " << temperature << " " << row;
      }
    }
  }
}

}  // namespace
}  // namespace invar
