// Low-rank adapters as PEFT saves them: a directory with adapter_config.json and
// adapter_model.safetensors. It refuses by name what Invar does not compute.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weights/lora_adapter.h"

namespace invar {

LoraAdapter open_peft_adapter(const std::string& directory);

// The settings that such a directory has for all its modules.
struct PeftSettings {
  int64_t rank = 8;
  double alpha = 8;
  bool by_root = false;              // rslora: s is alpha / sqrt(rank)
  std::vector<std::string> targets;  // what modules' names end with; empty: the ends of those there
  std::string base = {};             // where the model is that it stands beside, or nothing

  double scale() const;  // s
};

// Writes such a directory. `tensors` has those of the modules under the names that they say. Throws
// Error.
void write_peft_adapter(const std::string& directory, const std::vector<AdapterModule>& modules,
                        const PeftSettings& settings, const TensorSource& tensors,
                        ThreadPool& pool);
// The names of a module's A and B in such a file.
std::string peft_name(const std::string& module, char which);
// Whether a module's name is this one or ends with it behind a point.
bool is_module_named(std::string_view module, std::string_view name);

}  // namespace invar
