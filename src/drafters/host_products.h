// Matrix products of drafters that are a few matrices and no decoder: on the CPU, in bf16, whatever
// the target computes on. A drafter's bits are nobody's business.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/inference.h"
#include "weights/safetensors.h"

namespace invar {

// A file of tensors by name; or, for tests, made ones: the directory "dummy:SEED" has whatever
// matrices and vectors are asked for, matrices random and vectors of ones.
class TensorFile {
 public:
  // The first of `names` that stands in the directory. Throws UsageError when there is none; one
  // that says how to convert where there is a pickle instead. `made`: the tensors that `has` knows
  // of where they are made.
  TensorFile(const std::string& directory, std::span<const char* const> names,
             std::span<const char* const> made = {});

  bool is_made() const { return !file_; }
  const std::string& path() const { return path_; }
  bool has(const std::string& name) const;
  // The rows of a matrix, or a vector as one row; bf16 and f32. Throws Error, naming the tensor,
  // when it is missing, of another shape, not of numbers or not finite.
  std::vector<bf16_t> matrix(const std::string& name, int64_t rows, int64_t columns) const;
  std::vector<float> vector(const std::string& name, int64_t size) const;
  // The same, or nothing where it is missing.
  std::vector<float> vector_if_there(const std::string& name, int64_t size) const;
  // Of I64 or I32.
  std::vector<int64_t> integers(const std::string& name, int64_t size) const;
  // The first tensor that was not read so far and whose name ends in none of `unneeded`, or "".
  std::string first_unread(std::span<const char* const> unneeded) const;

 private:
  const SafetensorsTensor* find(const std::string& name) const;
  const SafetensorsTensor& require(const std::string& name, std::span<const int64_t> shape) const;
  template <typename T>
  std::vector<T> read(const std::string& name, std::span<const int64_t> shape, DType as) const;

  std::string path_;
  std::optional<SafetensorsFile> file_;  // else they are made
  std::span<const char* const> made_;
  uint64_t seed_ = 0;
  mutable std::set<std::string, std::less<>> read_;
};

class HostProducts {
 public:
  // `kernels`: of the CPU.
  HostProducts(const Kernels& kernels, ThreadPool& pool);

  // A matrix of [outputs][inner], packed; it lives as long as this.
  Matrix pack(std::span<const bf16_t> rows, int64_t outputs, int64_t inner);
  // y = x * w + bias (or null); x has rows of w.k, y gets rows of w.n.
  void multiply(std::span<const float> x, const Matrix& w, const float* bias,
                std::vector<float>& y);
  // x = x / sqrt(mean(x * x) + eps) * weight, row by row.
  static void normalise(std::span<float> x, std::span<const float> weight, float eps);

 private:
  const Kernels& kernels_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Execution execution_;
  std::vector<DeviceArray<bf16_t>> weights_;
  DeviceArray<bf16_t> activation_;
};

}  // namespace invar
