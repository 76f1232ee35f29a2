#include "train/model_weights.h"

namespace invar {

ModelWeights::ModelWeights(const TrainerOptions& options, const TrainingDevice& on, bool in_turn)
    : device(on.device),
      forward(DecoderWeights::in_turn(options.model.spec, {.order = options.order},
                                      on.kernels.weights)),
      backward(options.model.spec, *device, in_turn, on.kernels.weights) {}

// The matrices the other way round are made layer by layer.
ModelWeights::ModelWeights(const TrainerOptions& options, const TrainingDevice& on,
                           const TensorSource& weights, ThreadPool& pool)
    : device(on.device),
      forward(options.model.spec, {.order = options.order}, make_shard(options.model.spec, 0, 1),
              weights, *device, pool, on.kernels.weights),
      backward(options.model.spec, *device, false, on.kernels.weights) {
  const DecoderSpec& spec = options.model.spec;
  const ParameterLayout layout(spec);
  const std::unique_ptr<Stream> stream = device->make_stream();
  const Execution execution{.device = device.get(), .stream = stream.get(), .pool = &pool};
  const int64_t head = layout.offset(spec.tied_head ? TensorRole::embedding : TensorRole::head);
  std::vector<bf16_t> numbers;
  for (const ParameterLayout::Unit& unit : layout.units()) {
    numbers.assign(static_cast<size_t>(unit.count()), {});
    for (size_t i = unit.first; i < unit.last; ++i) {
      const ParameterLayout::Slot& slot = layout.slots()[i];
      weights.read(slot.tensor.name, 0, slot.count, DType::bf16,
                   &numbers[static_cast<size_t>(slot.offset - unit.begin)]);
    }
    const TransposedWeights::Source from{numbers.data(), layout, unit.begin};
    if (unit.layer >= 0) backward.update_layer(unit.layer, from, on.training, execution);
    if (unit.begin <= head && head < unit.end) backward.update_head(from, on.training, execution);
  }
}

std::shared_ptr<ModelWeights> frozen_weights(const TrainerOptions& options) {
  if (!options.lora.is_on()) return nullptr;
  ThreadPool pool(options.threads);
  const TrainingDevice on = open_training_device(options.device, options.instruction_set,
                                                 options.order, 0, options.ranks);
  return std::make_shared<ModelWeights>(options, on, *options.lora.base, pool);
}

}  // namespace invar
