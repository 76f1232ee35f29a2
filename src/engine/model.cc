#include "engine/model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <span>

#include "base/error.h"
#include "device/cuda_device.h"
#include "engine/open_weights.h"
#include "engine/rank_processes.h"
#include "kernels/cuda/baseline.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/select.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "model/families/tensors.h"
#include "weights/hf_directory.h"
#include "weights/weights_digest.h"

namespace invar {

namespace {

Arithmetic parse_arithmetic(const ModelOptions& options) {
  Arithmetic arithmetic;
  if (options.arithmetic == "portable") return arithmetic;
  if (options.arithmetic == "hopper")
    arithmetic.order = Order::hopper;
  else if (options.arithmetic == "control")
    arithmetic.is_baseline = true;
  else
    fail_usage("expected an arithmetic of portable, hopper or control, found \"{}\"",
               options.arithmetic);
  return arithmetic;
}

// The whole of `text` as a number.
template <typename T>
bool parse(std::string_view text, T& number) {
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

std::vector<std::unique_ptr<Device>> open_devices(const std::string& name, int ranks) {
  std::vector<std::unique_ptr<Device>> devices;
  int ordinal = 0;
  if (name == "cpu") {
    devices.push_back(make_host_device());
  } else if (name == "cuda") {
    const int count = std::max(1, std::min(ranks, cuda_device_count()));
    for (int i = 0; i < count; ++i) devices.push_back(make_cuda_device(i));
  } else if (name.starts_with("cuda:") && parse(std::string_view(name).substr(5), ordinal)) {
    devices.push_back(make_cuda_device(ordinal));
  } else {
    fail_usage("expected a device of cpu, cuda or cuda:N, found \"{}\"", name);
  }
  return devices;
}

// The GPUs' kernels for what the options ask, or one sentence about why not.
Kernels gpu_kernels(const ModelOptions& options, const Arithmetic& arithmetic,
                    std::span<const std::unique_ptr<Device>> devices) {
  if (options.instruction_set != "auto")
    fail_usage("the instruction set {} was asked for and the device is {}", options.instruction_set,
               options.device);
  if (arithmetic.is_baseline && arithmetic.weights == DType::f32)
    fail_usage(
        "on a GPU the arithmetic control is for bf16 weights and this model's are f32 or f16; use "
        "--weights rounded");
  if (arithmetic.is_baseline) return cuda::baseline_kernels();
  if (arithmetic.order == Order::hopper)
    for (const auto& device : devices) cuda::check_hopper_steps(*device);
  return cuda::kernels(arithmetic.order);
}

// The seed of "dummy:SEED", or nothing for "auto".
std::optional<uint64_t> dummy_seed(const std::string& load_format) {
  if (load_format == "auto") return std::nullopt;
  uint64_t seed = 0;
  if (load_format.starts_with("dummy:") && parse(std::string_view(load_format).substr(6), seed))
    return seed;
  fail_usage("expected a load format of auto or dummy:SEED, found \"{}\"", load_format);
}

// Reads what the model is and opens its weights.
std::unique_ptr<TensorSource> open_weights(const ModelOptions& options, ModelConfig& config) {
  config = read_model_config(options);
  if (const auto seed = dummy_seed(options.load_format)) return dummy_weights(config.spec, *seed);
  return open_checkpoint(options.model);
}

}  // namespace

ModelConfig read_model_config(const ModelOptions& options) {
  if (dummy_seed(options.load_format)) {
    if (is_preset(options.model)) return {.spec = preset_spec(options.model)};
    std::error_code ignored;
    if (!std::filesystem::exists(options.model, ignored))
      fail_usage("expected a model directory or a preset of {}, found nothing at {}",
                 fmt::join(preset_names(), ", "), json::quoted(options.model));
  }
  const HfDirectory directory = open_hf_directory(options.model);
  return parse_model_config(directory.config, directory.generation_config, options.model);
}

std::unique_ptr<TensorSource> open_weights(const ModelOptions& options) {
  ModelConfig config;
  return open_weights(options, config);
}

Digest weights_digest(const ModelOptions& options, ThreadPool& pool) {
  ModelConfig config;
  const auto source = open_weights(options, config);
  return weights_digest(*source, source->names(), pool);
}

Model::Model(const ModelOptions& options, const LoadProgress& progress) : options_(options) {
  if (options.weights != "auto" && options.weights != "rounded")
    fail_usage("expected weights auto or rounded, found \"{}\"", options.weights);
  if (options.threads < 0 || options.threads > 1024)
    fail_usage("expected 0 to 1024 threads, found {}", options.threads);
  if (options.ranks < 1 || options.ranks > 64 || (options.ranks & (options.ranks - 1)) != 0)
    fail_usage("expected a tensor-parallel size of 1, 2, 4, ... 64, found {}", options.ranks);
  arithmetic_ = parse_arithmetic(options);
  devices_ = open_devices(options.device, options.ranks);
  pool_ = std::make_unique<ThreadPool>(options.threads);

  const bool rounded = options.weights == "rounded";
  const std::unique_ptr<TensorSource> source = open_weights(options, config_);
  check_tensors(spec(), *source);
  // What predicts further stands in the checkpoint, unused unless it drafts.
  if (options.mtp_module)
    check_module(spec(), *source);
  else
    config_.spec.mtp_layers = 0;
  arithmetic_.weights = product_type(spec(), *source);
  if (rounded && arithmetic_.weights == DType::f32) {  // else there is nothing to round
    arithmetic_.weights = DType::bf16;
    arithmetic_.is_rounded = true;
  }
  if (arithmetic_.order == Order::hopper && arithmetic_.weights == DType::f32)
    fail_usage(
        "the arithmetic hopper is defined for bf16 weights and this model's are f32 or f16; use "
        "--weights rounded");
  settle_executor();
  for (const int cut : options.layer_cuts)
    if (cut <= 0 || cut >= spec().layers)
      fail_usage("expected layer cuts between 1 and {}, found {}", spec().layers - 1, cut);
  if (std::ranges::adjacent_find(options.layer_cuts, std::greater_equal()) !=
      options.layer_cuts.end())
    fail_usage("expected ascending layer cuts, found {}", fmt::join(options.layer_cuts, ","));

  host_kernels_ = select_kernels(arithmetic_.order, options.instruction_set);
  kernels_ = device().is_host() ? host_kernels_ : gpu_kernels(options, arithmetic_, devices_);
  make_shard(spec(), 0, options.ranks);                 // throws before processes are started
  if (options_.executor == "mp" && options_.rank == 0)  // they load while this process does
    processes_ = std::make_unique<RankProcesses>(options_, threads_of_rank());
  weights_.resize(options.ranks);
  for (int rank = 0; rank < options.ranks; ++rank)
    if (is_here(rank))
      weights_[rank] = std::make_unique<DecoderWeights>(
          spec(), arithmetic_, make_shard(spec(), rank, options.ranks), *source, device(rank),
          *pool_, kernels_.weights, progress);
  if (processes_) processes_->expect_ready();
}

void Model::settle_executor() {
  if (options_.executor != "threads" && options_.executor != "mp")
    fail_usage("expected an executor of threads or mp, found \"{}\"", options_.executor);
  if (options_.executor == "threads") return;
  if (!device().is_host())
    fail_usage("ranks are processes only on the CPU so far, and the device is {}", options_.device);
  if (options_.ranks == 1)
    options_.executor = "threads";
  else if (options_.rank < 0)
    options_.rank = 0;
}

Model::~Model() = default;

int64_t Model::weight_bytes() const {
  int64_t total = 0;
  for (const auto& weights : weights_)
    if (weights) total += weights->bytes();
  return total;
}

std::vector<std::span<const std::byte>> Model::weight_arrays() const {
  std::vector<std::span<const std::byte>> arrays;
  for (const auto& weights : weights_) {
    if (!weights) continue;
    for (const auto& array : weights->memory()) arrays.emplace_back(array.data(), array.size());
  }
  return arrays;
}

int64_t Model::weight_bytes_per_token() const {
  int64_t total = weight_bytes();
  for (const auto& weights : weights_)
    if (weights && !weights->embedding_is_shared())
      total -= int64_t{spec().vocab} * spec().hidden * size_of(weights->type());
  return total;
}

void Model::reload(const TensorSource& source) {
  if (processes_) fail_usage("ranks that are processes take weights from a directory only");
  check_tensors(spec(), source);
  write(source);
}

void Model::write(const TensorSource& source) {
  for (int rank = 0; rank < ranks(); ++rank)
    if (is_here(rank)) weights_[rank]->reload(spec(), source, device(rank), *pool_);
}

void Model::check_same_model(const ModelConfig& other, const TensorSource& source) const {
  DecoderSpec found = other.spec;
  found.mtp_layers = spec().mtp_layers;
  if (found != spec())
    fail(
        "expected a checkpoint of the model that is served, found another shape in its "
        "config.json");
  check_tensors(other.spec, source);
  if (options_.mtp_module) check_module(other.spec, source);
  const DType served = arithmetic_.is_rounded ? DType::f32 : arithmetic_.weights;
  if (product_type(spec(), source) != served)
    fail("expected matrices of the type that is served ({}), found another",
         served == DType::f32 ? "f32 or f16" : name_of(served));
}

Digest Model::take(const std::string& directory) {
  ModelOptions other = options_;
  other.model = directory;
  other.load_format = "auto";
  ModelConfig config;
  const auto source = open_weights(other, config);
  check_same_model(config, *source);
  const Digest digest = weights_digest(*source, source->names(), *pool_);
  try {
    write(*source);
    if (processes_) processes_->take(directory);
  } catch (...) {  // half of it may have been written
    ModelConfig before;
    write(*open_weights(options_, before));
    if (processes_) processes_->take(options_.model);
    throw;
  }
  options_ = std::move(other);
  return digest;
}

Decoder Model::make_decoder(int rank, ThreadPool& pool, int exit_layer) {
  DecoderSpec part = spec();
  if (exit_layer > 0) {
    part.layers = exit_layer;
    part.layer_specs.resize(static_cast<size_t>(exit_layer));
    part.mtp_layers = 0;
  }
  return Decoder(part, arithmetic_, kernels_, *weights_[rank], device(rank),
                 device().is_host() ? &pool : nullptr);
}

}  // namespace invar
