#include "drafters/host_products.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "kernels/pack.h"
#include "numerics/philox.h"
#include "weights/tensor_source.h"

namespace invar {

namespace {

std::string path_of(const std::string& directory, std::span<const char* const> names) {
  std::error_code ignored;
  for (const char* name : names) {
    const std::string path = directory + "/" + name;
    if (std::filesystem::exists(path, ignored)) return path;
  }
  for (const char* pickle : {"medusa_lm_head.pt", "pytorch_model.bin"})
    if (std::filesystem::exists(directory + "/" + pickle, ignored))
      fail_usage(
          "{} holds {}, a pickle, which can run code and is not read; in Python, "
          "safetensors.torch.save_file(torch.load(\"{}\", weights_only=True), \"{}\") converts it",
          directory, pickle, pickle, names.front());
  fail_usage("expected {} in {}, found none of them", fmt::join(names, " or "),
             json::quoted(directory));
}

constexpr std::string_view kMade = "dummy:";

uint64_t made_seed(const std::string& directory) {
  const std::string_view digits = std::string_view(directory).substr(kMade.size());
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seed);
  if (error != std::errc() || end != digits.data() + digits.size())
    fail_usage("expected a number after dummy:, found {}", json::quoted(directory));
  return seed;
}

// Uniform, of the variance that keeps a row's.
std::vector<bf16_t> made_matrix(const std::string& name, int64_t rows, int64_t columns,
                                uint64_t seed) {
  const float scale = std::sqrt(3 / static_cast<float>(columns));
  std::vector<bf16_t> values(static_cast<size_t>(rows * columns));
  const auto of_name = static_cast<uint32_t>(std::hash<std::string>()(name));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto random = philox4x32({static_cast<uint32_t>(i), of_name, 0, 0}, seed);
    values[i] = f32_to_bf16(scale * (static_cast<float>(random[0]) * 0x1p-31f - 1));
  }
  return values;
}

}  // namespace

TensorFile::TensorFile(const std::string& directory, std::span<const char* const> names,
                       std::span<const char* const> made)
    : path_(directory), made_(made) {
  if (directory.starts_with(kMade)) {
    seed_ = made_seed(directory);
    return;
  }
  file_.emplace(path_of(directory, names));
  path_ = file_->path();
}

bool TensorFile::has(const std::string& name) const {
  return is_made() ? std::ranges::find(made_, name) != made_.end() : find(name) != nullptr;
}

const SafetensorsTensor* TensorFile::find(const std::string& name) const {
  const auto found = std::ranges::find(file_->tensors(), name, &SafetensorsTensor::name);
  return found == file_->tensors().end() ? nullptr : &*found;
}

const SafetensorsTensor& TensorFile::require(const std::string& name,
                                             std::span<const int64_t> shape) const {
  const SafetensorsTensor* tensor = find(name);
  if (!tensor) fail("{}: the tensor {} is missing", path(), json::quoted(name));
  if (!std::ranges::equal(tensor->shape, shape))
    fail("{}: {}: expected the shape [{}], found [{}]", path(), json::quoted(name),
         fmt::join(shape, ", "), fmt::join(tensor->shape, ", "));
  read_.insert(name);
  return *tensor;
}

template <typename T>
std::vector<T> TensorFile::read(const std::string& name, std::span<const int64_t> shape,
                                DType as) const {
  const SafetensorsTensor* tensor = &require(name, shape);
  const std::string& type = tensor->dtype;
  if (type != "BF16" && type != "F16" && type != "F32")
    fail("{}: {}: expected BF16, F16 or F32, found {}", path(), json::quoted(name), type);
  const DType stored = type == "BF16" ? DType::bf16 : type == "F16" ? DType::f16 : DType::f32;
  std::vector<std::byte> bytes(static_cast<size_t>(tensor->end - tensor->begin));
  file_->read(*tensor, 0, bytes);
  const int64_t count = static_cast<int64_t>(bytes.size()) / size_of(stored);
  if (first_non_finite(bytes.data(), stored, count) >= 0)
    fail("{}: {}: expected finite numbers, found others", path(), json::quoted(name));
  std::vector<T> values(static_cast<size_t>(count));
  convert_elements(bytes.data(), stored, count, as, values.data());
  return values;
}

std::vector<bf16_t> TensorFile::matrix(const std::string& name, int64_t rows,
                                       int64_t columns) const {
  if (is_made()) return made_matrix(name, rows, columns, seed_);
  const int64_t shape[] = {rows, columns};
  return read<bf16_t>(name, shape, DType::bf16);
}

std::vector<float> TensorFile::vector(const std::string& name, int64_t size) const {
  if (is_made()) return std::vector<float>(static_cast<size_t>(size), 1.0F);
  return read<float>(name, {&size, 1}, DType::f32);
}

std::vector<float> TensorFile::vector_if_there(const std::string& name, int64_t size) const {
  return has(name) ? vector(name, size) : std::vector<float>();
}

std::string TensorFile::first_unread(std::span<const char* const> unneeded) const {
  if (is_made()) return "";
  for (const SafetensorsTensor& tensor : file_->tensors())
    if (!read_.contains(tensor.name) &&
        std::ranges::none_of(unneeded, [&](const char* end) { return tensor.name.ends_with(end); }))
      return tensor.name;
  return "";
}

std::vector<int64_t> TensorFile::integers(const std::string& name, int64_t size) const {
  const SafetensorsTensor& tensor = require(name, {&size, 1});
  if (tensor.dtype != "I64" && tensor.dtype != "I32")
    fail("{}: {}: expected I64 or I32, found {}", path(), json::quoted(name), tensor.dtype);
  const size_t each = tensor.dtype == "I64" ? sizeof(int64_t) : sizeof(int32_t);
  std::vector<std::byte> bytes(static_cast<size_t>(size) * each);
  file_->read(tensor, 0, bytes);
  std::vector<int64_t> values(static_cast<size_t>(size));
  for (size_t i = 0; i < values.size(); ++i) {
    int32_t narrow = 0;
    if (each == sizeof narrow) {
      std::memcpy(&narrow, &bytes[i * each], each);
      values[i] = narrow;
    } else {
      std::memcpy(&values[i], &bytes[i * each], each);
    }
  }
  return values;
}

HostProducts::HostProducts(const Kernels& kernels, ThreadPool& pool)
    : kernels_(kernels), device_(make_host_device()), stream_(device_->make_stream()) {
  execution_ = {.device = device_.get(), .stream = stream_.get(), .pool = &pool};
}

Matrix HostProducts::pack(std::span<const bf16_t> rows, int64_t outputs, int64_t inner) {
  Matrix w{.n = outputs, .k = inner};
  weights_.emplace_back(*device_, static_cast<size_t>(w.elements()), "a drafter's weights");
  pack_rows(w, rows.data(), inner, 0, outputs, {}, weights_.back().data());
  w.data = weights_.back().data();
  return w;
}

void HostProducts::multiply(std::span<const float> x, const Matrix& w, const float* bias,
                            std::vector<float>& y) {
  const int64_t rows = static_cast<int64_t>(x.size()) / w.k, stride = activation_stride(w.k);
  if (std::ssize(activation_) < rows * stride)
    activation_ = {*device_, static_cast<size_t>(rows * stride), "a drafter's activations"};
  for (int64_t t = 0; t < rows; ++t) {
    bf16_t* row = activation_.data() + t * stride;
    convert_elements(x.data() + t * w.k, DType::f32, w.k, DType::bf16, row);
    std::fill(row + w.k, row + stride, bf16_t{});
  }
  y.resize(static_cast<size_t>(rows * w.n));
  execution_.run(kernels_.matmul, MatmulParams{.x = {.data = activation_.data(), .stride = stride},
                                               .w = w,
                                               .rows = rows,
                                               .runs = 1,
                                               .bias = bias,
                                               .accumulate = false,
                                               .y = y.data(),
                                               .y_stride = w.n});
}

void HostProducts::normalise(std::span<float> x, std::span<const float> weight, float eps) {
  const size_t width = weight.size();
  for (size_t begin = 0; begin < x.size(); begin += width) {
    double sum = 0;
    for (size_t i = 0; i < width; ++i) sum += double{x[begin + i]} * x[begin + i];
    const float scale = static_cast<float>(1 / std::sqrt(sum / static_cast<double>(width) + eps));
    for (size_t i = 0; i < width; ++i) x[begin + i] *= scale * weight[i];
  }
}

}  // namespace invar
