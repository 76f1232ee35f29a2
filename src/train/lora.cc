#include "train/lora.h"

#include <algorithm>

#include "base/error.h"
#include "model/adapter_weights.h"
#include "model/families/family_source.h"
#include "model/families/tensors.h"
#include "numerics/philox.h"
#include "weights/hf_directory.h"

namespace invar {

PeftSettings LoraOptions::peft_settings() const {
  PeftSettings named = settings;
  if (std::ranges::count(named.targets, kAllLinear) > 0) named.targets.clear();
  return named;
}

void open_base(const std::string& directory, ModelConfig& model, LoraOptions& lora) {
  const HfDirectory files = open_hf_directory(directory);
  model = parse_model_config(files.config, files.generation_config, directory);
  if (!model.quantization.is_null())
    fail_usage(
        "{}: expected weights of bf16, f16 or f32 beside an adapter that is trained, found a "
        "quantization_config",
        directory);
  auto stored = open_checkpoint(directory);
  check_tensors(model.spec, *stored);
  model.spec.mtp_layers = 0;
  lora.base = decoder_tensors(model.spec, std::move(stored));
}

std::vector<AdapterModule> lora_modules(const DecoderSpec& spec, const LoraOptions& lora) {
  if (spec.mtp_layers > 0)
    fail_usage("expected no module of multi-token prediction beside [lora], found one");
  std::vector<AdapterModule> modules = target_modules(spec, lora.settings.targets);
  for (AdapterModule& module : modules) {
    module.rank = lora.settings.rank;
    module.scale = lora.settings.scale();
    module.a = peft_name(module.name, 'A');
    module.b = peft_name(module.name, 'B');
  }
  return modules;
}

ParameterLayout trained_layout(const DecoderSpec& spec, const LoraOptions& lora) {
  if (!lora.is_on()) return ParameterLayout(spec);
  std::map<std::string, TensorSpec> weights;
  for (TensorSpec& tensor : tensors_of(spec)) weights[tensor.name] = std::move(tensor);
  std::vector<TensorSpec> tensors;
  for (const AdapterModule& module : lora_modules(spec, lora)) {
    const auto of = weights.find(module.name + ".weight");
    if (of == weights.end())
      fail("adapters of {} are not trained: a {} model stores other tensors than its decoder has",
           json::quoted(module.name), spec.family);
    tensors.push_back({of->second.role, of->second.layer, module.a, {module.rank, module.inputs}});
    tensors.push_back({of->second.role, of->second.layer, module.b, {module.outputs, module.rank}});
  }
  return {spec, std::move(tensors)};
}

void first_numbers(const ParameterLayout::Slot& slot, uint64_t seed, uint32_t number, float* to) {
  const bool is_a = slot.tensor.name.ends_with(".lora_A.weight");
  const double bound = 1 / __builtin_sqrt(static_cast<double>(slot.tensor.shape[1]));
  for (int64_t i = 0; i < slot.count; ++i) {
    const auto bits = philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), number,
                                  static_cast<uint32_t>(RandomPurpose::weight)},
                                 seed);
    to[i] = is_a ? static_cast<float>(bound * ((bits[0] + 0.5) * 0x1p-31 - 1)) : 0.0F;
  }
}

}  // namespace invar
