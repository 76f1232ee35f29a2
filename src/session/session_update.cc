// The public API over an instance: weights that a caller has as tensors.
#include "engine/model_description.h"
#include "session/session_impl.h"
#include "session/session_request.h"
#include "session/weight_change.h"

namespace invar {

int Session::gpu() const {
  return impl_->running->model().only_gpu();
}

void Session::update_weights(std::span<const Tensor> tensors) {
  const Impl::Awake at = impl_->with_weights();
  at->loop.between_steps([&](Engine& engine) {
    engine.expect_no_work();
    const auto loaded = open_weights(engine.model().options());
    const WeightsAsTheyAre in_use(*loaded, impl_->updated, impl_->only_on_gpu, engine.model());
    WeightChange change(in_use, engine.model());
    std::vector<GivenTensor> all;
    for (const Tensor& tensor : tensors) all.push_back(given(tensor));
    change.add(all);
    const bool is_here = impl_->only_on_gpu.empty() && change.on_gpu.empty();
    if (!is_here) change.expect_finite();
    try {
      engine.take_weights(change.over_those_in_use());
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
