// Adapters of experts as PEFT saves them where a model holds the matrices of all experts in one
// parameter (LoraConfig.target_parameters): A of all experts one behind the other, [E * rank][K],
// and B of all with their columns in turn, [N][rank * E]. Read as those of each expert's matrices.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "weights/lora_adapter.h"

namespace invar {

// The module that holds experts' parameters, where a tensor's module is one, else empty: PEFT wraps
// it once for each parameter.
std::string experts_module(std::string_view module);

struct StackedExperts {
  std::string module;                   // "model.layers.0.mlp.experts"
  std::vector<AdapterFactors> factors;  // of gate_up_proj, of down_proj, or of both in any order
};

// The settings of PEFT's configuration that are about them.
struct StackedSettings {
  std::set<std::string> parameters;                         // those that are targets
  FunctionRef<int64_t(const std::string& parameter)> rank;  // by the name of module and parameter
  FunctionRef<double(const std::string&, int64_t rank)> scale;
};

// The modules of each expert, added to `modules`; the source has their tensors and those of
// `tensors`. Throws Error naming a tensor whose shape does not fit.
std::unique_ptr<TensorSource> split_experts(std::unique_ptr<TensorSource> tensors,
                                            const std::map<std::string, StackedExperts>& stacks,
                                            const StackedSettings& settings,
                                            std::vector<AdapterModule>& modules);

}  // namespace invar
