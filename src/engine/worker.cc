#include "engine/worker.h"

#include "base/check.h"
#include "base/error.h"
#include "kernels/back_end.h"

namespace invar {

namespace {

// Refuses, on a GPU, the parts that CPUs alone compute.
void expect_gpu_parts(const DecoderSpec& spec, const std::string& device) {
  for (const LayerSpec& layer : spec.layer_specs) {
    const AttentionSpec* attention = layer.attention();
    const char* what = nullptr;
    if (attention && attention->chunk > 0) what = "attention by chunks";
    if (attention && attention->sees_ahead) what = "attention in both directions";
    if (attention && (attention->value_dim > 0 || attention->value_scale != 1))
      what = "attention whose values are not as its keys";
    if (layer.indexer()) what = "attention to positions that an indexer chooses";
    if (layer.experts() && layer.experts()->latent > 0) what = "experts that read a latent vector";
    if (layer.experts() && layer.experts()->weighs_inputs)
      what = "experts whose weights multiply what they read";
    if (what) fail_usage("{} ({}): expected the device cpu, found {}", what, spec.family, device);
  }
}

// A GPU's kernels for the options. Throws UsageError, one sentence, where there are none.
Kernels gpu_kernels(const ModelDescription& model, Device& device) {
  const ModelOptions& options = model.options;
  expect_gpu_parts(model.spec(), options.device);
  if (options.instruction_set != "auto")
    fail_usage("the instruction set {} was asked for and the device is {}", options.instruction_set,
               options.device);
  if (model.arithmetic.is_baseline && model.arithmetic.weights == DType::f32)
    fail_usage(
        "on a GPU the arithmetic control is for bf16 weights and this model's are f32 or f16; use "
        "--weights rounded");
  const BackEnd& gpu = gpu_back_end();
  if (model.arithmetic.is_baseline) return gpu.baseline_kernels();
  if (model.arithmetic.order == Order::hopper) gpu.check_hopper_steps(device);
  if (is_e4m3(model.arithmetic.quantised)) {
    if (model.arithmetic.order != Order::hopper)
      fail_usage(
          "on a GPU products of e4m3 numbers (--weights {}) go with the arithmetic hopper, and "
          "portable was asked for; use --arith hopper or other --weights",
          options.weights);
    gpu.check_hopper8_steps(device);
  }
  return gpu.kernels(model.arithmetic.order);
}

Shard shard_of(const ModelDescription& model, const WorkerPlace& place) {
  Shard shard =
      make_shard(model.spec(), place.rank, place.ranks, layers_of_stage(model, place.stage));
  shard.placement =
      parse_expert_placement(model.options.expert_placement, model.options.redundant_experts);
  shard.has_one_run = model.arithmetic.chain > 0;
  return shard;
}

}  // namespace

LayerRange layers_of_stage(const ModelDescription& model, int stage) {
  const std::vector<int>& cuts = model.options.layer_cuts;
  return {stage == 0 ? 0 : cuts[stage - 1],
          stage == std::ssize(cuts) ? model.spec().layers : cuts[stage]};
}

Worker::Worker(const ModelDescription& model, const WorkerPlace& place,
               std::shared_ptr<Device> device, ThreadPool& loaders, ThreadPool& threads,
               const TensorSource& source, const LoadProgress& progress)
    : model_(model),
      place_(place),
      device_(std::move(device)),
      loaders_(loaders),
      threads_(threads),
      kernels_(device_->is_host() ? model.host_kernels : gpu_kernels(model, *device_)),
      weights_(model.spec(), model.arithmetic, shard_of(model, place), source, *device_, loaders,
               kernels_.weights, progress) {}

void Worker::join(const WorkerLinks& links) {
  links_ = links;
  for (Channel* channel : {links.before, links.after})
    if (channel && !device_->is_host()) channel->pin();
  for (const auto& [number, runner] : runners_) runner->forget_recordings();
  if (model_.arithmetic.chain <= 1) return;
  chain_ = make_chain_group(*links.group);
  links_.group = chain_.get();
}

void Worker::leave() {
  links_.group->leave();
  if (links_.before) links_.before->leave();
  if (links_.after) links_.after->leave();
}

Decoder Worker::make_decoder(const RunnerLimits& limits, ThreadPool& threads) const {
  DecoderSpec part = model_.spec();
  if (limits.exit_layer > 0) {
    part.layers = limits.exit_layer;
    part.layer_specs.resize(static_cast<size_t>(limits.exit_layer));
    part.mtp_layers = 0;
  }
  return Decoder(part, model_.arithmetic, kernels_, weights_, *device_,
                 device_->is_host() ? &threads : nullptr);
}

void Worker::make_runner(const MakeRunner& message, ThreadPool* threads) {
  SequenceStore* keys = message.keys_of < 0 ? nullptr : &runner(message.keys_of).kv();
  auto made = std::make_unique<Runner>(make_decoder(message.limits, threads ? *threads : threads_),
                                       message.limits, keys);
  const std::lock_guard lock(mutex_);
  CHECK(runners_.emplace(message.runner, std::move(made)).second, "a runner that is there already");
}

void Worker::end_runner(int32_t number) {
  const std::lock_guard lock(mutex_);
  runners_.erase(number);
}

Runner& Worker::runner(int32_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = runners_.find(number);
  if (found == runners_.end()) fail("expected a runner that was made, found number {}", number);
  return *found->second;
}

void Worker::run(int32_t number, const Batch& batch, ForwardIo& io) {
  runner(number).run(batch, links_, io);
}

void Worker::copy_slots(const CopySlots& message) {
  runner(message.runner).copy_slots(message.copies);
}

void Worker::take_weights(const TensorSource& source) {
  weights_.reload(model_.spec(), source, *device_, loaders_);
}

void Worker::read_back(const TensorSource& source, const std::string& tensor, std::byte* out) {
  weights_.read_back(model_.spec(), source, *device_, loaders_, tensor, out);
}

void Worker::give_memory(const GiveMemory& message) {
  const std::lock_guard lock(mutex_);
  if (message.kv_cache)
    for (const auto& [number, runner] : runners_)
      if (SequenceStore* keys = runner->own_kv()) keys->vacate();
  if (!message.weights) return;
  if (message.keeps_weights)
    for (const auto& array : weights_.memory())
      device_->download(kept_.emplace_back(array.size()).data(), array.data(), array.size());
  weights_.vacate();
}

void Worker::take_memory(const TakeMemory& message) {
  const std::lock_guard lock(mutex_);
  if (message.weights) {
    weights_.occupy();
    for (size_t i = 0; i < kept_.size(); ++i)
      device_->upload(weights_.memory()[i].data(), kept_[i].data(), kept_[i].size());
    kept_ = {};
  }
  if (message.kv_cache)
    for (const auto& [number, runner] : runners_)
      if (SequenceStore* keys = runner->own_kv()) keys->occupy();
}

namespace {

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;  // clang 14 does not find it

}  // namespace

void Worker::handle(const WorkerMessage& message) {
  std::visit(Overloaded{
                 [](const LoadModel&) { fail("expected one model for a worker, found a second"); },
                 [&](const MakeRunner& m) { make_runner(m); },
                 [&](const EndRunner& m) { end_runner(m.runner); },
                 [&](const RunBatch& m) {
                   ForwardIo io;
                   run(m.runner, m.batch, io);
                 },
                 [&](const CopySlots& m) { copy_slots(m); },
                 [&](const TakeWeights& m) {
                   ModelOptions other = model_.options;
                   other.model = m.model;
                   other.load_format = m.load_format;
                   take_weights(*open_weights(other));
                 },
                 [&](const GiveMemory& m) { give_memory(m); },
                 [&](const TakeMemory& m) { take_memory(m); },
             },
             message);
}

}  // namespace invar
