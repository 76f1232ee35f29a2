#include "weights/gguf_adapter.h"

#include <cmath>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "weights/gguf.h"

namespace invar {

namespace {

constexpr std::string_view kA = ".weight.lora_a", kB = ".weight.lora_b";

void expect_text(const GgufFile& file, std::string_view key, std::string_view expected) {
  const json::Value* found = file.find(key);
  if (!found || *found != json::Value(expected))
    fail("{}: expected {} as {}, found {}", file.path(), json::quoted(expected), key,
         found ? json::excerpt(*found) : "none");
}

// The factor of B A, times the rank; 0: there is none.
double alpha_of(const GgufFile& file) {
  constexpr std::string_view kAlpha = "adapter.lora.alpha";
  const json::Value* alpha = file.find(kAlpha);
  if (!alpha || !alpha->is_number() || !std::isfinite(alpha->as_number()))
    fail("{}: expected a number as {}, found {}", file.path(), kAlpha,
         alpha ? json::excerpt(*alpha) : "none");
  return alpha->as_number();
}

std::map<std::string, AdapterFactors> tensors_by_module(const TensorSource& tensors) {
  std::map<std::string, AdapterFactors> modules;
  for (const std::string& name : tensors.names()) {
    const bool is_a = name.ends_with(kA);
    if (!is_a && !name.ends_with(kB))
      fail("{}: expected a tensor that ends with {} or {}, found another", tensors.where(name), kA,
           kB);
    AdapterFactors& factors = modules[name.substr(0, name.size() - kA.size())];
    (is_a ? factors.a : factors.b) = name;
  }
  if (modules.empty()) fail("{}: expected tensors of an adapter, found none", tensors.where(""));
  return modules;
}

}  // namespace

LoraAdapter open_gguf_adapter(const std::string& path) {
  const auto file = std::make_shared<const GgufFile>(path);
  expect_text(*file, "general.type", "adapter");
  expect_text(*file, "adapter.type", "lora");
  const double alpha = alpha_of(*file);
  std::unique_ptr<TensorSource> tensors = open_gguf_tensors(file);
  std::vector<AdapterModule> modules;
  for (const auto& [module_name, factors] : tensors_by_module(*tensors)) {
    const std::string& name = module_name;  // which a lambda may name, as clang 14 has it
    const auto name_of = [&](char which) { return name + std::string(which == 'A' ? kA : kB); };
    AdapterModule module = adapter_module(*tensors, name, factors, name_of);
    if (alpha != 0) module.scale = alpha / static_cast<double>(module.rank);
    modules.push_back(std::move(module));
  }
  return LoraAdapter(path, std::move(modules), std::move(tensors));
}

}  // namespace invar
