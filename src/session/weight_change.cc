#include "session/weight_change.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json.h"
#include "kernels/back_end.h"

namespace invar {

void WeightChange::check(const GivenTensor& tensor) const {
  const std::string name = "update_weights: " + json::quoted(tensor.name);
  if (!loaded_.has(tensor.name)) fail_usage("{}: expected a tensor of the model", name);
  const TensorInfo &expected = loaded_.info(tensor.name), &found = tensor.info;
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

void WeightChange::add(const GivenTensor& tensor) {
  check(tensor);
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

void WeightChange::expect_finite() const {
  for (const auto& [name, tensor] : here)
    if (const int64_t bad =
            first_non_finite(tensor.bytes.data(), tensor.info.dtype, tensor.info.elements());
        bad >= 0)
      fail_non_finite(over_loaded(), name, bad);
  std::vector<GpuValues> values;
  for (const auto& [name, tensor] : on_gpu)
    values.push_back({tensor.data, tensor.info.dtype, tensor.info.elements()});
  if (values.empty()) return;
  const std::vector<int64_t> found = gpu_back_end().first_non_finite(model_.device(), values);
  size_t i = 0;
  for (const auto& [name, tensor] : on_gpu)
    if (const int64_t bad = found[i++]; bad >= 0) fail_non_finite(over_loaded(), name, bad);
}

}  // namespace invar
