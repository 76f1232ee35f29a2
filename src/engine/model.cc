#include "engine/model.h"

#include "base/error.h"
#include "engine/devices.h"
#include "model/families/tensors.h"
#include "weights/weights_digest.h"

namespace invar {

Model::Model(const ModelOptions& options, const LoadProgress& progress, const Launch& launch)
    : Model(options, nullptr, progress, launch) {}

Model::Model(const ModelOptions& options, std::unique_ptr<TensorSource> source,
             const LoadProgress& progress, const Launch& launch)
    : description_(options, source),
      pool_(std::make_unique<ThreadPool>(options.threads)),
      workers_(launch(description_, *source, *pool_, progress)) {}

int64_t Model::weight_bytes() const {
  int64_t total = 0;
  for (const Worker* worker : workers_->here()) total += worker->weights().bytes();
  return total;
}

std::vector<std::span<const std::byte>> Model::weight_arrays() const {
  std::vector<std::span<const std::byte>> arrays;
  for (const Worker* worker : workers_->here())
    for (const auto& array : worker->weights().memory())
      arrays.emplace_back(array.data(), array.size());
  return arrays;
}

int64_t Model::weight_bytes_per_token() const {
  int64_t total = weight_bytes();
  for (const Worker* worker : workers_->here()) {
    const DecoderWeights& weights = worker->weights();
    if (weights.shard().has_embedding && !weights.embedding_is_shared())
      total -= weights.embedding().bytes();
    if (weights.layer_inputs().width() > 0)  // a token reads a row of it
      total -= weights.layer_inputs().embedding.bytes();
    for (size_t i = 0; i < static_cast<size_t>(spec().layers); ++i) {  // a token reads some experts
      const LayerWeights& layer = weights.layers()[i];
      const LayerParts parts = parts_of({spec(), static_cast<int>(i), weights.shard()});
      for (size_t part = 0; part < layer.size(); ++part)
        total -= parts[part]->unread_bytes(*layer[part]);
    }
  }
  return total;
}

namespace {

// A checkpoint's tensors may have the module that predicts one token further, which stands there
// unused unless it drafts.
DecoderSpec spec_with_module(const ModelDescription& model, const TensorSource& tensors) {
  if (!has_module(model.spec(), tensors)) return model.spec();
  return spec_of_stored(read_model_config(model.options).spec, tensors);
}

}  // namespace

void Model::reload(const TensorSource& source) {
  if (std::ssize(workers_->here()) < ranks() * stages())
    fail_usage("workers in other processes take weights from a directory only");
  check_tensors(spec_with_module(description_, source), source);
  workers_->take_weights({}, source);
}

void Model::take_weights(const ModelOptions& named, const TensorSource& source) {
  workers_->take_weights({named.model, named.load_format}, source);
}

std::unique_ptr<TensorSource> Model::open_same_model(const ModelOptions& other) const {
  const ModelConfig config = read_model_config(other);
  auto source = open_weights(other, config);
  description_.expect_same_model(config, *source);
  return source;
}

ModelOptions Model::options_of(const std::string& directory) const {
  ModelOptions other = options();
  other.model = directory;
  other.load_format = "auto";
  return other;
}

void Model::take(const std::string& directory) {
  ModelOptions other = options_of(directory);
  const auto source = open_same_model(other);
  try {
    take_weights(other, *source);
  } catch (...) {  // half of it may have been written
    take_weights(options(), *open_weights(options()));
    throw;
  }
  description_.options = std::move(other);
}

Digest Model::digest_of(const std::string& directory) {
  const auto source = open_same_model(options_of(directory));
  return weights_digest(source->as_stored(), source->as_stored().names(), *pool_);
}

int Model::only_gpu() const {
  if (device().is_host() || ranks() * stages() > 1) return -1;
  return number_of_gpu(options().device);
}

std::vector<std::byte> Model::read_back(const TensorSource& source, const std::string& tensor) {
  const TensorInfo& info = source.info(tensor);
  std::vector<std::byte> bytes(static_cast<size_t>(bytes_of(info.dtype, info.elements())));
  workers_->home().read_back(source, tensor, bytes.data());
  return bytes;
}

void Model::sleep(const Sleep& what) {
  // The host's memory is where they would be kept.
  const bool leaves = what.weights == Sleep::Weights::lost ||
                      (what.weights == Sleep::Weights::kept && !device().is_host());
  const GiveMemory message{.kv_cache = what.kv_cache && !asleep_.kv_cache,
                           .weights = leaves && asleep_.weights == Sleep::Weights::stay,
                           .keeps_weights = what.weights == Sleep::Weights::kept};
  workers_->give_memory(message);
  asleep_.kv_cache |= message.kv_cache;
  if (message.weights) asleep_.weights = what.weights;
}

void Model::wake(const Wake& what, const TensorSource* source) {
  if (what.weights && asleep_.weights != Sleep::Weights::stay) {
    const bool reads = asleep_.weights == Sleep::Weights::lost;
    workers_->take_memory({.weights = true});
    if (reads && source)
      take_weights(options(), *source);
    else if (reads)
      take_weights(options(), *open_weights(options()));
    asleep_.weights = Sleep::Weights::stay;
  }
  if (!what.kv_cache || !asleep_.kv_cache) return;
  workers_->take_memory({.kv_cache = true});
  asleep_.kv_cache = false;
}

}  // namespace invar
