#include "drafters/tensor_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "base/number_of.h"

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

}  // namespace

std::optional<uint64_t> made_seed(const std::string& directory) {
  constexpr std::string_view kMade = "dummy:";
  if (!directory.starts_with(kMade)) return std::nullopt;
  const auto seed = number_of<uint64_t>(directory.substr(kMade.size()));
  if (!seed) fail_usage("expected a number after dummy:, found {}", json::quoted(directory));
  return seed;
}

TensorFile::TensorFile(const std::string& directory, std::span<const char* const> names)
    : file_(std::make_unique<SafetensorsFile>(path_of(directory, names))) {}

const SafetensorsTensor* TensorFile::find(const std::string& name) const {
  const auto found = std::ranges::find(file_->tensors(), name, &SafetensorsTensor::name);
  return found == file_->tensors().end() ? nullptr : &*found;
}

const SafetensorsTensor& TensorFile::require(const std::string& name) const {
  const SafetensorsTensor* tensor = find(name);
  if (!tensor) fail("{}: the tensor {} is missing", path(), json::quoted(name));
  read_.insert(name);
  return *tensor;
}

DType TensorFile::type_of(const SafetensorsTensor& tensor) const {
  const std::string& type = tensor.dtype;
  if (type != "BF16" && type != "F16" && type != "F32")
    fail("{}: {}: expected BF16, F16 or F32, found {}", path(), json::quoted(tensor.name), type);
  return type == "BF16" ? DType::bf16 : type == "F16" ? DType::f16 : DType::f32;
}

TensorInfo TensorFile::info(const std::string& name) const {
  const SafetensorsTensor& tensor = require(name);
  return {type_of(tensor), tensor.shape};
}

void TensorFile::read(const std::string& name, int64_t first, int64_t count, DType as,
                      void* out) const {
  const SafetensorsTensor& tensor = *find(name);
  const DType stored = type_of(tensor);
  std::vector<std::byte> bytes(static_cast<size_t>(count * size_of(stored)));
  file_->read(tensor, first * size_of(stored), bytes);
  convert_elements(bytes.data(), stored, count, as, out);
}

std::string TensorFile::first_unread(std::span<const char* const> unneeded) const {
  for (const SafetensorsTensor& tensor : file_->tensors())
    if (!read_.contains(tensor.name) &&
        std::ranges::none_of(unneeded, [&](const char* end) { return tensor.name.ends_with(end); }))
      return tensor.name;
  return "";
}

std::vector<int64_t> TensorFile::integers(const std::string& name, int64_t size) const {
  const SafetensorsTensor& tensor = require(name);
  if (tensor.shape != std::vector<int64_t>{size})
    fail("{}: {}: expected the shape [{}], found [{}]", path(), json::quoted(name), size,
         fmt::join(tensor.shape, ", "));
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

void RenamedTensors::add(const std::string& name, RenamedTensor entry) {
  names_.insert(std::ranges::upper_bound(names_, name), name);
  entries_[name] = std::move(entry);
}

void RenamedTensors::add(const std::string& name, const TensorFile& file,
                         const std::string& name_there) {
  add(name, {file.info(name_there), name_there, &file, nullptr});
}

void RenamedTensors::add(const std::string& name, const TensorSource& source,
                         const std::string& name_there) {
  add(name, {source.info(name_there), name_there, nullptr, &source});
}

void RenamedTensors::read(std::string_view name, int64_t first, int64_t count, DType as,
                          void* out) const {
  const RenamedTensor& entry = find(name);
  if (entry.file)
    entry.file->read(entry.name_there, first, count, as, out);
  else
    entry.source->read(entry.name_there, first, count, as, out);
}

std::string RenamedTensors::where(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return fmt::format("a drafter's tensor {}", json::quoted(name));
  const RenamedTensor& entry = found->second;
  return entry.file
             ? fmt::format("{}: tensor {}", entry.file->path(), json::quoted(entry.name_there))
             : entry.source->where(entry.name_there);
}

}  // namespace invar
