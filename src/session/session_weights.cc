// The public API over an instance: its weights, and the memory that it takes.
#include "base/error.h"
#include "engine/model_description.h"
#include "session/changed_weights.h"
#include "session/session_impl.h"
#include "session/session_request.h"
#include "weights/weights_digest.h"

namespace invar {

void Session::load_weights(const std::string& directory) {
  const Impl::Awake at = impl_->with_weights();
  at->loop.between_steps([&](Engine& engine) {
    engine.expect_no_work();
    engine.take_checkpoint(directory);
    impl_->updated.clear();
    impl_->only_on_gpu.clear();
    impl_->options.model.model = directory;
    impl_->options.model.load_format = "auto";
    const std::lock_guard lock(impl_->compiling);
    impl_->receipt_model.reset();
  });
}

std::vector<Tensor> Session::tensors() const {
  const auto loaded = open_weights(impl_->with_weights()->model().options());
  std::vector<Tensor> all;
  for (const std::string& name : loaded->names())
    all.push_back(described(name, loaded->info(name)));
  return all;
}

std::vector<std::byte> Session::tensor_bytes(const std::string& name) {
  const Impl::Awake at = impl_->with_weights();
  return at->loop.between_steps([&](Engine& engine) {
    const auto loaded = open_weights(engine.model().options());
    const WeightsAsTheyAre weights(*loaded, impl_->updated, impl_->only_on_gpu, engine.model());
    if (!weights.has(name))
      fail_usage("expected a tensor of the model, found {}", json::quoted(name));
    const TensorInfo& info = weights.info(name);
    if (storage_of(info.dtype).block > 1)
      fail_usage("expected a tensor of bf16, f16 or f32, found {} of {}", json::quoted(name),
                 name_of(info.dtype));
    std::vector<std::byte> bytes(info.elements() * size_of(info.dtype));
    weights.read(name, 0, info.elements(), info.dtype, bytes.data());
    return bytes;
  });
}

// Between steps, or where the weights stay as they are.
std::string Session::Impl::digest_of_weights(Running& at) {
  ThreadPool pool(1);
  const auto loaded = open_weights(at.model().options());
  const TensorSource& stored = loaded->as_stored();
  if (updated.empty() && only_on_gpu.empty())
    return to_hex(invar::weights_digest(stored, stored.names(), pool));
  if (&stored != loaded.get())
    fail_usage(
        "the digest of updated weights needs a checkpoint with a tensor for each of the "
        "model's, found one of another family's form");
  return to_hex(invar::weights_digest(WeightsAsTheyAre(*loaded, updated, only_on_gpu, at.model()),
                                      loaded->names(), pool));
}

std::string Session::weights_digest() {
  const Impl::Awake at = impl_->with_weights();
  return at->loop.between_steps([&](Engine&) { return impl_->digest_of_weights(at.running); });
}

void Session::reset_prefix_cache() {
  const Impl::Awake at = impl_->awake();
  at->loop.between_steps([](Engine& engine) { engine.clear_prefix_cache(); });
}

void Session::sleep(int level) {
  const invar::Sleep what = invar::Sleep::of_level(level);
  const std::unique_lock lock(impl_->sleeping, std::try_to_lock);
  if (!lock || impl_->running->engine().has_work())
    fail_usage("expected no live request when the session goes to sleep, found some");
  if (level == 2 && impl_->asleep.weights == invar::Sleep::Weights::stay)
    impl_->keep_what_is_on_gpu(*impl_->running);
  impl_->running->engine().sleep(what);
  impl_->asleep.kv_cache = true;
  if (impl_->asleep.weights != invar::Sleep::Weights::lost) impl_->asleep.weights = what.weights;
}

void Session::wake_up(const std::vector<std::string>& tags) {
  const Wake what = Wake::of_tags(tags);
  const std::unique_lock lock(impl_->sleeping);
  Model& model = impl_->running->model();
  if (impl_->updated.empty()) {
    model.wake(what);
  } else {
    const auto loaded = open_weights(model.options());
    const UpdatedWeights weights(*loaded, impl_->updated);
    model.wake(what, &weights);
  }
  if (what.kv_cache) impl_->asleep.kv_cache = false;
  if (what.weights) impl_->asleep.weights = invar::Sleep::Weights::stay;
}

bool Session::is_sleeping() const {
  const std::shared_lock lock(impl_->sleeping);
  return impl_->asleep.any();
}

}  // namespace invar
