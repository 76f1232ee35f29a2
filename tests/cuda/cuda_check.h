// What every test of GPU kernels needs: the GPU, arrays on both sides, and the CPU's kernels to
// compare with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "../kernels/kernel_check.h"
#include "device/cuda_device.h"
#include "kernels/cuda/cuda_kernels.h"

namespace invar {

// GPU 0, or null: then every test is skipped as not run, and with INVAR_REQUIRE=cuda fails.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override;
  Device& gpu() const { return *gpu_; }
  // What the tests compute on; copies of Device come after it.
  Execution on() const { return {gpu_.get(), stream_.get()}; }
  // The fastest kernels of this machine's CPU; each of them has the scalar definition's bits.
  static Kernels cpu(Order order);

 private:
  std::unique_ptr<Device> gpu_;
  std::unique_ptr<Stream> stream_;
};

// Memory as kernels expect it: 64-byte aligned.
template <typename T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(size_t count) {
    return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{64}));
  }
  void deallocate(T* p, size_t) { ::operator delete (p, std::align_val_t{64}); }
  bool operator==(const AlignedAllocator&) const = default;
};
template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

// An array on the host and its copy on a GPU, which has guards around it. Everything starts as
// 0xff.
template <typename T>
class Twin {
 public:
  Twin(Device& gpu, int64_t size)
      : host(size), gpu_(&gpu), memory_(gpu, size + 2 * kGuard, "a test's array") {
    std::memset(static_cast<void*>(host.data()), 0xff, size * sizeof(T));
    std::vector<unsigned char> stale((size + 2 * kGuard) * sizeof(T), 0xff);
    gpu.upload(memory_.data(), stale.data(), stale.size());
  }
  Twin(Device& gpu, const std::vector<T>& values) : Twin(gpu, std::ssize(values)) {
    std::ranges::copy(values, host.begin());
    upload();
  }

  T* device() const { return memory_.data() + kGuard; }
  void upload() { gpu_->upload(device(), host.data(), host.size() * sizeof(T)); }
  std::vector<T> download() const {
    std::vector<T> values(host.size());
    gpu_->download(values.data(), device(), values.size() * sizeof(T));
    return values;
  }
  // Whether the GPU's array has the host's bits and nothing around it was written.
  ::testing::AssertionResult matches() const {
    if (!guards_are_intact()) return ::testing::AssertionFailure() << "wrote around the output";
    const std::vector<T> found = download();
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16_t>) {
      return same_bits(std::span<const T>(host), std::span<const T>(found));
    } else {
      if (std::ranges::equal(host, found)) return ::testing::AssertionSuccess();
      return ::testing::AssertionFailure() << "arrays differ";
    }
  }

  AlignedVector<T> host;

 private:
  static constexpr int64_t kGuard = 256 / sizeof(T);
  bool guards_are_intact() const {
    std::vector<unsigned char> all((host.size() + 2 * kGuard) * sizeof(T));
    gpu_->download(all.data(), memory_.data(), all.size());
    const auto is_stale = [](unsigned char c) { return c == 0xff; };
    return std::all_of(all.begin(), all.begin() + 256, is_stale) &&
           std::all_of(all.end() - 256, all.end(), is_stale);
  }

  Device* gpu_;
  DeviceArray<T> memory_;
};

// Rows of an activation as fill_row makes them; pad columns zero, the rest stale.
template <typename T>
Twin<T> random_rows(Device& gpu, Random& random, int64_t rows, int64_t k) {
  const int64_t stride = activation_stride(k);
  Twin<T> x(gpu, (rows - 1) * stride + round_up(k, kLeafPad));
  for (int64_t t = 0; t < rows; ++t) {
    fill_row(random, std::span<T>(x.host).subspan(t * stride, k));
    std::fill_n(x.host.begin() + t * stride + k, round_up(k, kLeafPad) - k, T{0});
  }
  x.upload();
  return x;
}

std::vector<float> random_floats(Random& random, int64_t count);

}  // namespace invar
