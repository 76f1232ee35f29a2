// The tensor cores against the recorded ones, and Invar's functions on the GPU against the CPU's.
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cuda_check.h"
#include "kernels/cuda/hopper_sample.h"
#include "math_kernels.h"
#include "numerics/math.h"

namespace invar {
namespace {

using Steps = CudaTest;

unsigned differing_steps(const Execution& on, std::span<const cuda::RecordedSteps> steps) {
  Device& gpu = *on.device;
  const DeviceArray<cuda::RecordedSteps> cases(gpu, steps.size(), "recorded steps");
  const DeviceArray<unsigned> count(gpu, 1, "recorded steps");
  gpu.upload(cases.data(), steps.data(), steps.size_bytes());
  cuda::count_differing_steps(cases.data(), steps.size(), count.data(), on);
  unsigned different = 0;
  gpu.download(&different, count.data(), sizeof different);
  return different;
}

TEST_F(Steps, SampleIsAcceptedAndAChangedBitIsNot) {
  EXPECT_NO_THROW(cuda::check_hopper_steps(gpu()));
  std::vector<cuda::RecordedSteps> changed(cuda::hopper_sample().begin(),
                                           cuda::hopper_sample().end());
  ASSERT_EQ(changed.size(), 16u);
  changed[3].d[17][5] ^= 1;
  EXPECT_EQ(differing_steps(on(), changed), 1u);
}

TEST_F(Steps, EveryRecordedCase) {
  // The repository, here or where this program was brought to.
  std::filesystem::path folder = std::filesystem::path(INVAR_SOURCE_DIR) / "tests/data/hopper";
  if (!std::filesystem::exists(folder)) folder = "tests/data/hopper";
  size_t cases = 0;
  for (const char* name :
       {"hopper_mma_k16.bin", "hopper_mma_k16_special.bin", "hopper_mma_k16_edge.bin"}) {
    std::ifstream file(folder / name, std::ios::binary);
    int32_t count = 0;
    ASSERT_TRUE(file.read(reinterpret_cast<char*>(&count), sizeof count)) << name;
    std::vector<cuda::RecordedSteps> steps(count);
    ASSERT_TRUE(
        file.read(reinterpret_cast<char*>(steps.data()), count * sizeof(cuda::RecordedSteps)))
        << name;
    EXPECT_EQ(differing_steps(on(), steps), 0u) << name;
    cases += count;
  }
  EXPECT_EQ(cases, 380u);
}

// A GPU that fails in the middle is one sentence; in a process of its own, since the device is
// lost.
TEST_F(Steps, AFailedDeviceIsOneSentence) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto lose_the_device = [] {
    const auto device = make_cuda_device(0);
    const DeviceArray<char> array(*device, 1, "a test");
    const std::unique_ptr<Stream> stream = device->make_stream();
    cuda::fail_on_purpose({device.get(), stream.get()});
    char c = 0;
    try {
      device->download(&c, array.data(), 1);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(lose_the_device(), ::testing::ExitedWithCode(3),
              "the GPU failed while copying from the GPU: .*");
}

// Every 61st bit pattern, which is one of every exponent and both signs many times over.
TEST_F(Steps, ElementaryFunctions) {
  const ScopedFlushToZero flush;
  constexpr int64_t kCount = int64_t{1} << 22;
  Twin<float> x(gpu(), kCount), exp2(gpu(), kCount), exp(gpu(), kCount), log(gpu(), kCount),
      divide(gpu(), kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    const float v = i % 4 ? std::bit_cast<float>(static_cast<uint32_t>(i * 1021))
                          : static_cast<float>(i - kCount / 2) * (200.0f / kCount);
    x.host[i] = v;
    exp2.host[i] = math::exp2(v);
    exp.host[i] = math::exp(v);
    const float positive = std::bit_cast<float>(std::bit_cast<uint32_t>(v) & 0x7fffffff) + 0.0f;
    const bool is_normal = positive < std::numeric_limits<float>::infinity();
    log.host[i] = is_normal ? math::log(positive) : 0.0f;
    divide.host[i] = v / (1.0f + math::sqrt(positive));
  }
  x.upload();
  cuda::elementary(x.device(), kCount, exp2.device(), exp.device(), log.device(), divide.device(),
                   on());
  EXPECT_TRUE(exp2.matches());
  EXPECT_TRUE(exp.matches());
  EXPECT_TRUE(log.matches());
  EXPECT_TRUE(divide.matches());
}

// Every float: the activation without branches is the one with them. The control: where it is not
// asked, it differs.
TEST_F(Steps, ActivationOfTameGates) {
  const Twin<unsigned long long> counts(gpu(), std::vector<unsigned long long>(4));
  cuda::count_tame_gates(counts.device(), on());
  const std::vector<unsigned long long> found = counts.download();
  EXPECT_GT(found[0], 1'200'000'000);
  EXPECT_EQ(found[1], 0);
  EXPECT_EQ(found[0] + found[2], uint64_t{1} << 32);
  EXPECT_GT(found[3], 1'000'000);
}

}  // namespace
}  // namespace invar
