// What every kernel test needs: operands between guards, values over the whole exponent range, a
// comparison of bits, and the instruction sets under test.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/training.h"

namespace invar {

// A reproducible stream of bits.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  uint32_t next() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
  }
  uint32_t below(uint32_t bound) { return next() % bound; }
  float uniform() { return static_cast<float>(static_cast<int32_t>(next())) * 0x1p-31f; }

 private:
  uint64_t state_;
};

// An array that ends (but for alignment to 64 bytes) at a page nobody may touch, with guard bytes
// around it. Everything starts as 0xff: NaN in bf16 and f32.
template <typename T>
class Guarded {
 public:
  static constexpr int kStale = 0xff;

  explicit Guarded(int64_t size) : size_(size) {
    const size_t bytes = (size * sizeof(T) + 63) / 64 * 64;
    area_ = (bytes + 2 * kPage - 1) / kPage * kPage;  // a page of guards at least at the front
    void* mapped =
        ::mmap(nullptr, area_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED, "no memory for a test");
    memory_ = static_cast<unsigned char*>(mapped);
    ::mprotect(memory_ + area_, kPage, PROT_NONE);
    std::memset(memory_, kStale, area_);
    data_ = reinterpret_cast<T*>(memory_ + area_ - bytes);
  }
  ~Guarded() { ::munmap(memory_, area_ + kPage); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() const { return data_; }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) const { return data_[i]; }
  std::span<T> span() const { return {data_, static_cast<size_t>(size_)}; }
  void copy_from(const Guarded& other) { std::memcpy(data_, other.data_, size_ * sizeof(T)); }

  bool guards_are_intact() const {
    const unsigned char* begin = reinterpret_cast<const unsigned char*>(data_);
    for (const unsigned char* p = memory_; p < begin; ++p)
      if (*p != kStale) return false;
    for (const unsigned char* p = begin + size_ * sizeof(T); p < memory_ + area_; ++p)
      if (*p != kStale) return false;
    return true;
  }

 private:
  static constexpr size_t kPage = 4096;
  int64_t size_;
  size_t area_ = 0;
  unsigned char* memory_ = nullptr;
  T* data_ = nullptr;
};

// Fills one row (or one output of a weight) with values of one kind, chosen at random: ordinary
// ones; ones whose products lie around the smallest normal number; any finite bit pattern,
// subnormals and both zeros included; ordinary ones with an infinity or a NaN among them.
void fill_row(Random& random, std::span<bf16_t> row);
void fill_row(Random& random, std::span<float> row);

// Whether two outputs have the same bits. All NaNs are one value, but a place that one side did not
// write (still 0xff..) must not have been written by the other.
::testing::AssertionResult same_bits(std::span<const float> expected, std::span<const float> found);
::testing::AssertionResult same_bits(std::span<const bf16_t> expected,
                                     std::span<const bf16_t> found);

// The same bits and both guards intact. Other types than the two have no NaN: bytes are compared.
template <typename T>
::testing::AssertionResult same(const Guarded<T>& expected, const Guarded<T>& found) {
  if (!expected.guards_are_intact() || !found.guards_are_intact())
    return ::testing::AssertionFailure() << "guard bytes were written";
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16_t>) {
    return same_bits(expected.span(), found.span());
  } else {
    for (int64_t i = 0; i < expected.size(); ++i)
      if (std::memcmp(&expected[i], &found[i], sizeof(T)) != 0)
        return ::testing::AssertionFailure() << "element " << i << " differs";
    return ::testing::AssertionSuccess();
  }
}

// Calls work for every one of `count` shares, the last first.
void run_in_parts(int count, const std::function<void(const Execution&)>& work);

// A test of one instruction set, the parameter. A set that this machine lacks is skipped and listed
// as not run; INVAR_REQUIRE=NAME,NAME makes that a failure.
class KernelTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  const Kernels& kernels() const { return kernels_; }  // of order portable
  const Kernels& scalar() const { return scalar_; }
  const TrainingKernels& training_kernels() const { return training_kernels_; }
  const TrainingKernels& scalar_training() const { return scalar_training_; }

 private:
  Kernels kernels_{}, scalar_{};
  TrainingKernels training_kernels_{}, scalar_training_{};
};

// The sets that KernelTest takes; suites are instantiated over these. "amx_emulated" is the code
// for AMX with its tile registers in memory, for machines without it.
std::vector<std::string> tested_sets();
std::string set_name(const ::testing::TestParamInfo<std::string>& info);

}  // namespace invar
