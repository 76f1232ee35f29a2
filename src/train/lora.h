// An adapter that is trained beside a frozen model (numerics 2.4 and 9): what a recipe says of it,
// and which tensors it has.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/families/families.h"
#include "model/parameters.h"
#include "weights/peft_adapter.h"

namespace invar {

struct LoraOptions {
  PeftSettings settings{.rank = 0, .targets = {}};  // rank 0: the model itself is trained
  uint64_t seed = 1;                                // of the first A
  std::shared_ptr<const TensorSource> base;         // the model's weights, as its decoder has them

  bool is_on() const { return settings.rank > 0; }
  // As adapter_config.json has them: names of modules.
  PeftSettings peft_settings() const;
};

// Reads the model beside which an adapter is to be trained, of a directory or a GGUF file: its
// configuration, without a module that predicts further, and its weights. Quantised ones are their
// bf16 twins (numerics 0.1). Throws Error.
void open_base(const std::string& path, ModelConfig& model, LoraOptions& lora);
// The numbers that an engine is to compute with (ModelOptions::weights), so that its bits are the
// trainer's.
std::string base_weights(const ModelConfig& model);

// The modules that have an adapter, in the order of computation. Throws Error naming a target that
// can have none.
std::vector<AdapterModule> lora_modules(const DecoderSpec& spec, const LoraOptions& lora);

// The tensors that are trained: the model's, or an adapter's A and B under PEFT's names.
ParameterLayout trained_layout(const DecoderSpec& spec, const LoraOptions& lora);

// A as PEFT begins it: uniform below 1 / sqrt(inputs) in magnitude. B begins as zeros.
void first_numbers(const ParameterLayout::Slot& slot, uint64_t seed, uint32_t number, float* to);

}  // namespace invar
