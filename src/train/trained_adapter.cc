#include "train/trained_adapter.h"

#include <algorithm>

#include "model/parameter_source.h"

namespace invar {

namespace {

std::vector<AdapterModule> sorted_modules(const DecoderSpec& spec, const LoraOptions& lora) {
  std::vector<AdapterModule> modules = lora_modules(spec, lora);
  std::ranges::sort(modules, {}, &AdapterModule::name);
  return modules;
}

}  // namespace

TrainedAdapter::TrainedAdapter(const LoraOptions& lora, const ParameterLayout& layout,
                               const Decoder& decoder, const bf16_t* rounded, Workspace& forward)
    : rounded_(rounded),
      adapter_("the trained adapter", sorted_modules(decoder.spec, lora),
               std::make_unique<ParameterSource>(layout, rounded)),
      weights_(std::make_shared<AdapterWeights>(decoder, adapter_)),
      gradients_(decoder, *weights_, layout, forward.max_rows) {
  forward.adapters.put(decoder, 0, static_cast<int32_t>(lora.settings.rank), weights_);
}

void TrainedAdapter::publish(const Decoder& decoder, const TrainingKernels& kernels) {
  weights_->reload(decoder, adapter_);
  gradients_.update(rounded_, kernels, decoder.execution);
}

}  // namespace invar
