// Samples, log-probabilities and hashes on the GPU against the host's.
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

}  // namespace
}  // namespace invar
