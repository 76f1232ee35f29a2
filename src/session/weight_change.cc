#include "session/weight_change.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "kernels/back_end.h"
#include "model/families/tensor_table.h"

namespace invar {

bool WeightChange::is_tied_head(const GivenTensor& tensor) const {
  return model_.spec().tied_head && tensor.name == tensor_name(TensorRole::head);
}

void WeightChange::check(const GivenTensor& tensor) const {
  const std::string name = "update_weights: " + json::quoted(tensor.name);
  const std::string stored =
      is_tied_head(tensor) ? tensor_name(TensorRole::embedding) : tensor.name;
  if (!in_use_.has(stored)) fail_usage("{}: expected a tensor of the model", name);
  const TensorInfo &expected = in_use_.info(stored), &found = tensor.info;
  if (found != expected)
    fail_usage("{}: expected {} of shape [{}] as in the checkpoint, found {} of shape [{}]", name,
               name_of(expected.dtype), fmt::join(expected.shape, ", "), name_of(found.dtype),
               fmt::join(found.shape, ", "));
  if (!tensor.data) fail_usage("{}: expected its elements, found none", name);
  const int gpu = model_.only_gpu();
  if (tensor.gpu >= 0 && tensor.gpu != gpu)
    fail_usage("{}: expected a tensor of {}, found one of GPU {}: give its .cpu()", name,
               gpu < 0 ? "the host" : fmt::format("the host or of GPU {}", gpu), tensor.gpu);
}

void WeightChange::add(std::span<const GivenTensor> tensors) {
  for (const GivenTensor& tensor : tensors) {
    check(tensor);
    if (in_use_.has(tensor.name)) add(tensor);
  }
  for (const GivenTensor& tensor : tensors)
    if (is_tied_head(tensor)) expect_embedding(tensor);
}

void WeightChange::add(const GivenTensor& tensor) {
  here.erase(tensor.name);
  on_gpu.erase(tensor.name);
  if (tensor.gpu >= 0 && tensor.info.shape.size() == 2) {
    on_gpu[tensor.name] = {tensor.info, tensor.data};
    return;
  }
  UpdatedTensor& copy = here[tensor.name] = {tensor.info, {}};
  copy.bytes.resize(static_cast<size_t>(bytes_of(tensor.info.dtype, tensor.info.elements())));
  if (tensor.gpu >= 0)
    model_.device().download(copy.bytes.data(), tensor.data, copy.bytes.size());
  else
    std::copy_n(tensor.data, copy.bytes.size(), copy.bytes.data());
}

// The embedding is that of the change, or that in use. Torch gives both as the same memory.
void WeightChange::expect_embedding(const GivenTensor& head) const {
  const std::string embedding = tensor_name(TensorRole::embedding);
  const auto there = on_gpu.find(embedding);
  if (there != on_gpu.end() && there->second.data == head.data) return;
  const ChangedWeights weights = over_those_in_use();
  const int64_t width = head.info.row_elements(), rows = head.info.elements() / width;
  const auto row_bytes = static_cast<size_t>(bytes_of(head.info.dtype, width));
  constexpr int64_t kRowsAtOnce = 1024;
  std::vector<std::byte> own(kRowsAtOnce * row_bytes), wanted(own.size());
  for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows - row);
    const std::byte* from = head.data + static_cast<size_t>(row) * row_bytes;
    if (head.gpu >= 0)
      model_.device().download(own.data(), from, static_cast<size_t>(count) * row_bytes);
    else
      std::copy_n(from, static_cast<size_t>(count) * row_bytes, own.data());
    weights.read_rows(embedding, row, count, head.info.dtype, wanted.data());
    for (int64_t i = 0; i < count; ++i)
      if (const size_t at = static_cast<size_t>(i) * row_bytes;
          std::memcmp(&own[at], &wanted[at], row_bytes) != 0)
        fail_usage(
            "update_weights: {}: expected the bits of {}, which is this model's head, found others "
            "in row {}",
            json::quoted(head.name), json::quoted(embedding), row + i);
  }
}

void WeightChange::expect_finite() const {
  for (const auto& [name, tensor] : here)
    if (const int64_t bad =
            first_non_finite(tensor.bytes.data(), tensor.info.dtype, tensor.info.elements());
        bad >= 0)
      fail_non_finite(over_those_in_use(), name, bad);
  std::vector<GpuValues> values;
  for (const auto& [name, tensor] : on_gpu)
    values.push_back({tensor.data, tensor.info.dtype, tensor.info.elements()});
  if (values.empty()) return;
  const std::vector<int64_t> found = gpu_back_end().first_non_finite(model_.device(), values);
  size_t i = 0;
  for (const auto& [name, tensor] : on_gpu)
    if (const int64_t bad = found[i++]; bad >= 0) fail_non_finite(over_those_in_use(), name, bad);
}

}  // namespace invar
