// Samples, log-probabilities and hashes on the GPU against the host's.
#include <numeric>

#include "../sampling/device_sampler_cases.h"
#include "base/thread_pool.h"
#include "cuda_check.h"

namespace invar {
namespace {

using Samples = CudaTest;

TEST_F(Samples, WhatTheHostGives) {
  const Kernels kernels = cuda::kernels(Order::portable);
  DeviceSampler sampler(kernels.sample, on(), testing_sampling::kRows, kernels.hash_logits);
  for (const int64_t vocab : {1, 5, 320, 5000, 32000, 151936}) {
    DeviceArray<float> there(gpu(), testing_sampling::kRows * vocab, "a test");
    const auto upload = [&](const std::vector<float>& logits) {
      gpu().upload(there.data(), logits.data(), logits.size() * sizeof(float));
      return there.data();
    };
    testing_sampling::check_all(sampler, vocab, upload, vocab > 30000 ? 6 : 20);
  }
}

// Logits are hashed as they were, though the next step's take their place at once. The foil: asked
// for after that, the hashes are the others'.
TEST_F(Samples, HashesStandBesideWhatFollows) {
  constexpr int64_t kVocab = 151936, kRows = 16;
  const Kernels kernels = cuda::kernels(Order::portable);
  const std::vector<float> logits[] = {std::vector<float>(kRows * kVocab, 1.5F),
                                       std::vector<float>(kRows * kVocab, 2.5F)};
  const size_t bytes = logits[0].size() * sizeof(float);
  std::vector<int32_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  DeviceArray<float> now(gpu(), logits[0].size(), "a test"), next(gpu(), now.size(), "a test");
  DeviceArray<int32_t> there(gpu(), rows.size(), "a test");
  gpu().upload(now.data(), logits[0].data(), bytes);
  gpu().upload(next.data(), logits[1].data(), bytes);
  gpu().upload(there.data(), rows.data(), rows.size() * sizeof(int32_t));
  DeviceHasher hasher(kernels.hash_logits, on(), kRows);
  for (const bool is_late : {false, true}) {
    if (is_late) on().stream->copy_rows(now.data(), bytes, next.data(), bytes, bytes, 1);
    hasher.start(now.data(), kRows, kVocab, there.data(), kRows);
    if (!is_late) on().stream->copy_rows(now.data(), bytes, next.data(), bytes, bytes, 1);
    hasher.wait();
    PositionHasher expected;
    for (const Digest& digest : hasher.digests())
      EXPECT_EQ(digest, expected(std::span(logits[is_late]).first(kVocab))) << is_late;
    gpu().upload(now.data(), logits[0].data(), bytes);
  }
}

}  // namespace
}  // namespace invar
