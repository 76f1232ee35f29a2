// The public API over an instance: weights that a caller has as tensors.
#include "base/error.h"
#include "engine/model_description.h"
#include "kernels/back_end.h"
#include "session/changed_weights.h"
#include "session/session_impl.h"
#include "session/session_request.h"

namespace invar {

namespace {

struct Change {
  UpdatedTensors here;
  GpuTensors on_gpu;
};

// A matrix stays where it is. The rest is small, and copied.
void note(const Tensor& tensor, const TensorSource& loaded, Model& model, Change& change) {
  change.here.erase(tensor.name);
  change.on_gpu.erase(tensor.name);
  if (tensor.gpu < 0) {
    change.here[tensor.name] = copy_of(tensor, loaded);
    return;
  }
  if (tensor.gpu != model.only_gpu())
    fail_usage(
        "update_weights: \"{}\": expected a tensor of {}, found one of GPU {}: give its .cpu()",
        tensor.name,
        model.only_gpu() < 0 ? "the host" : fmt::format("the host or of GPU {}", model.only_gpu()),
        tensor.gpu);
  const TensorInfo info = checked_info(tensor, loaded);
  if (info.shape.size() == 2) {
    change.on_gpu[tensor.name] = {info, static_cast<const std::byte*>(tensor.data)};
    return;
  }
  UpdatedTensor& copy = change.here[tensor.name] = {info, {}};
  copy.bytes.resize(static_cast<size_t>(bytes_of(info.dtype, info.elements())));
  model.device().download(copy.bytes.data(), tensor.data, copy.bytes.size());
}

// Where weights on a GPU change there is no copy to go back to: all is looked at before.
void expect_finite(const TensorSource& loaded, const Change& change, Device& device) {
  for (const auto& [name, tensor] : change.here)
    if (const int64_t bad =
            first_non_finite(tensor.bytes.data(), tensor.info.dtype, tensor.info.elements());
        bad >= 0)
      fail_non_finite(loaded, name, bad);
  std::vector<GpuValues> values;
  for (const auto& [name, tensor] : change.on_gpu)
    values.push_back({tensor.data, tensor.info.dtype, tensor.info.elements()});
  if (values.empty()) return;
  const std::vector<int64_t> found = gpu_back_end().first_non_finite(device, values);
  size_t i = 0;
  for (const auto& [name, tensor] : change.on_gpu)
    if (const int64_t bad = found[i++]; bad >= 0) fail_non_finite(loaded, name, bad);
}

}  // namespace

int Session::gpu() const {
  return impl_->running->model().only_gpu();
}

void Session::update_weights(std::span<const Tensor> tensors) {
  const Impl::Awake at = impl_->with_weights();
  at->loop.between_steps([&](Engine& engine) {
    engine.expect_no_work();
    const auto loaded = open_weights(engine.model().options());
    Device& device = engine.model().device();
    Change change;
    for (const Tensor& tensor : tensors) note(tensor, *loaded, engine.model(), change);
    const bool is_here = impl_->only_on_gpu.empty() && change.on_gpu.empty();
    if (!is_here) expect_finite(*loaded, change, device);
    try {
      engine.take_weights(ChangedWeights(*loaded, change.here, change.on_gpu, device));
    } catch (...) {  // some of it may have been written
      if (is_here) engine.take_weights(UpdatedWeights(*loaded, impl_->updated));
      throw;
    }
    for (auto& [name, tensor] : change.here) {
      impl_->only_on_gpu.erase(name);
      impl_->updated.insert_or_assign(name, std::move(tensor));
    }
    for (const auto& [name, tensor] : change.on_gpu) {
      impl_->updated.erase(name);
      impl_->only_on_gpu.insert(name);
    }
    const std::lock_guard lock(impl_->compiling);
    impl_->receipt_model.reset();
  });
}

void Session::Impl::keep_what_is_on_gpu(Running& at) {
  const auto loaded = open_weights(at.model().options());
  for (const std::string& name : only_on_gpu)
    updated[name] = {loaded->info(name), at.model().read_back(*loaded, name)};
  only_on_gpu.clear();
}

}  // namespace invar
