#include "train/lora.h"

#include <algorithm>

#include "base/error.h"
#include "engine/model_description.h"
#include "model/adapter_weights.h"
#include "model/families/stored_places.h"
#include "model/families/tensors.h"
#include "numerics/philox.h"

namespace invar {

PeftSettings LoraOptions::peft_settings() const {
  PeftSettings named = settings;
  if (std::ranges::count(named.targets, kAllLinear) > 0) named.targets.clear();
  return named;
}

std::string base_weights(const ModelConfig& model) {
  return model.quantization.is_null() ? "rounded" : "twin";
}

void open_base(const std::string& path, ModelConfig& model, LoraOptions& lora) {
  ModelOptions options{.model = path};
  model = read_model_config(options);
  if (model.head != Head::tokens)
    fail_usage("{}: expected a model that gives tokens beside an adapter that is trained", path);
  options.weights = base_weights(model);
  auto tensors = open_weights(options, model);
  check_tensors(spec_of_stored(model.spec, *tensors), *tensors);
  if (!model.quantization.is_null() && product_type(model.spec, *tensors) != DType::bf16)
    fail_usage(
        "{}: expected bf16 beside the quantised matrices of a model beside which an adapter is "
        "trained, found f16 or f32",
        path);
  model.spec.mtp_layers = 0;
  lora.base = std::move(tensors);
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
  std::map<std::string, TensorSpec> first_parts;  // of what the model's files hold
  for (StoredTensor& stored : stored_tensors(spec))
    first_parts[stored.name] = std::move(stored.parts[0].of);
  std::vector<TensorSpec> tensors;
  for (const AdapterModule& module : lora_modules(spec, lora)) {
    const TensorSpec& of = first_parts.at(module.name + ".weight");
    tensors.push_back({of.role, of.layer, module.a, {module.rank, module.inputs}});
    tensors.push_back({of.role, of.layer, module.b, {module.outputs, module.rank}});
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
