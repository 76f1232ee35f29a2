// What the kernel tests share: instruction sets as test parameters, outputs between guards, and
// comparison of bits.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/select.h"

namespace invar {

// A test that runs once for each instruction set that is not the reference. A set that this machine
// lacks is reported as not run; INVAR_REQUIRE=amx,avx512 makes that a failure.
class KernelTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (is_supported(GetParam())) {
      kernels_ = select_kernels(Order::portable, GetParam());
      return;
    }
    const char* required = std::getenv("INVAR_REQUIRE");
    std::istringstream list(required ? required : "");
    for (std::string name; std::getline(list, name, ',');)
      if (name == GetParam()) FAIL() << GetParam() << " is required and this machine lacks it";
    GTEST_SKIP() << "not run: this machine lacks " << GetParam();
  }

  ScopedFlushToZero flush_;
  Kernels kernels_ = {};
  const Kernels reference_ = select_kernels(Order::portable, "scalar");
};

inline std::vector<std::string> fast_sets() {
  const std::vector<std::string>& all = instruction_sets();
  return {all.begin() + 1, all.end()};
}

#define INVAR_FOR_EACH_SET(Suite)                                       \
  INSTANTIATE_TEST_SUITE_P(Sets, Suite, testing::ValuesIn(fast_sets()), \
                           [](const auto& info) { return info.param; })

class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed) {}
  uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint32_t>(n)); }
  // Uniform in [-1, 1).
  float uniform() { return static_cast<float>(static_cast<int32_t>(bits())) * 0x1p-31f; }
  // A sign and fraction at random with an exponent in [low, high); -127 gives subnormals.
  float with_exponent(int low, int high) {
    const uint32_t exponent = static_cast<uint32_t>(low + below(high - low) + 127);
    return std::bit_cast<float>((bits() & 0x807fffff) | exponent << 23);
  }

 private:
  uint64_t state_;
};

// `size` elements between two runs of guard bytes. All begins as `fill` bytes, so that two buffers
// with one fill are equal where neither was written.
template <typename T>
class Guarded {
 public:
  explicit Guarded(int64_t size, uint8_t fill = 0xa5)
      : bytes_(static_cast<size_t>(size) * sizeof(T) + 2 * kGuard, fill) {}
  T* data() { return reinterpret_cast<T*>(bytes_.data() + kGuard); }
  T& operator[](int64_t i) { return data()[i]; }
  // Guards and elements.
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  static constexpr size_t kGuard = 192;
  std::vector<uint8_t> bytes_;
};

inline bool is_same(float a, float b) {
  return (a != a && b != b) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}
template <typename T>
bool is_same(T a, T b) {
  return a == b;
}

// The bytes must agree, guards included; two floats that are NaN agree.
template <typename T>
testing::AssertionResult same(const Guarded<T>& expected, const Guarded<T>& found) {
  const std::vector<uint8_t>&a = expected.bytes(), &b = found.bytes();
  if (a.size() != b.size()) return testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < a.size(); i += sizeof(T)) {
    if (i + sizeof(T) > a.size()) return testing::AssertionFailure() << "a torn element";
    T x, y;
    std::memcpy(&x, a.data() + i, sizeof x);
    std::memcpy(&y, b.data() + i, sizeof y);
    if (!is_same(x, y))
      return testing::AssertionFailure()
             << "element " << (static_cast<int64_t>(i) - 192) / static_cast<int64_t>(sizeof(T))
             << " of " << (a.size() - 384) / sizeof(T) << ": expected " << +x << ", found " << +y;
  }
  return testing::AssertionSuccess();
}

// Runs a kernel in `parts` shares, last share first.
template <typename Params>
void run(void (*kernel)(const Params&, Part), const Params& p, int parts = 1) {
  for (int i = parts - 1; i >= 0; --i) kernel(p, Part{i, parts});
}

}  // namespace invar
