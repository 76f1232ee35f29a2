#include "weights/peft_adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"
#include "weights/checkpoint_writer.h"
#include "weights/hf_directory.h"
#include "weights/stacked_experts.h"

namespace invar {

namespace {

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";

std::string join(const std::string& directory, const char* name) {
  return (std::filesystem::path(directory) / name).string();
}

// Keys that say where an adapter comes from or how it was trained, and change nothing in a forward.
constexpr std::string_view kWithoutEffect[] = {"alpha_pattern",
                                               "arrow_config",
                                               "auto_mapping",
                                               "base_model_name_or_path",
                                               "corda_config",
                                               "eva_config",
                                               "exclude_modules",
                                               "inference_mode",
                                               "layers_pattern",
                                               "layers_to_transform",
                                               "loftq_config",
                                               "lora_alpha",
                                               "lora_dropout",
                                               "lora_ga_config",
                                               "megatron_core",
                                               "peft_type",
                                               "peft_version",
                                               "qalora_group_size",
                                               "r",
                                               "rank_pattern",
                                               "revision",
                                               "runtime_config",
                                               "target_modules",
                                               "target_parameters",
                                               "task_type",
                                               "use_rslora"};
// Ways to begin that leave the base's weights as they are.
constexpr std::string_view kBeginnings[] = {"gaussian", "eva", "orthogonal"};

bool is_neutral(std::string_view key, const json::Value& value) {
  if (value.is_null() || value == json::Value(false)) return true;
  if (value.is_array() && value.as_array().empty()) return true;
  if (value.is_object() && value.as_object().empty()) return true;
  if (key == "bias") return value == json::Value("none");
  if (key == "init_lora_weights")
    return value.is_bool() ||
           (value.is_string() && std::ranges::count(kBeginnings, value.as_string()) > 0);
  return std::ranges::count(kWithoutEffect, key) > 0;
}

// The configuration's part that the forward depends on.
class Config {
 public:
  explicit Config(const std::string& path) : path_(path) {
    json::Value root = json::parse_file(path, {.max_depth = 32, .max_bytes = 4 << 20});
    if (!root.is_object()) fail("{}: expected a JSON object, found {}", path, root.type_name());
    root_ = std::move(root);
    const json::Value* type = root_.find("peft_type");
    if (!type || *type != json::Value("LORA"))
      fail("{}: expected an adapter of peft_type \"LORA\", found {}", path,
           type ? json::excerpt(*type) : "none");
    for (const auto& [key, value] : root_.as_object())
      if (!is_neutral(key, value))
        fail("{}: adapters with {} of {} are not computed; expected none", path, json::quoted(key),
             json::excerpt(value));
    const json::Value* rslora = root_.find("use_rslora");
    if (rslora && !rslora->is_null() && !rslora->is_bool())
      fail("{}: expected a boolean as use_rslora, found {}", path, json::excerpt(*rslora));
    by_root_ = rslora && *rslora == json::Value(true);
    expect_plain_patterns("rank_pattern");
    expect_plain_patterns("alpha_pattern");
    read_parameters();
  }

  // Which parameters of experts are targets: "gate_up_proj", "down_proj".
  const std::set<std::string>& parameters() const { return parameters_; }

  int64_t rank_of(const std::string& module) const {
    const double rank = number("r", "rank_pattern", module);
    if (!(rank >= 1 && rank <= kMostAdapterRank && rank == std::floor(rank)))
      fail("{}: expected a whole number of 1 to {} as the rank of {}, found {}", path_,
           kMostAdapterRank, json::quoted(module), rank);
    return static_cast<int64_t>(rank);
  }
  double scale_of(const std::string& module, int64_t rank) const {
    const double r = static_cast<double>(rank);
    return number("lora_alpha", "alpha_pattern", module) / (by_root_ ? std::sqrt(r) : r);
  }

 private:
  void read_parameters() {
    const json::Value* list = root_.find("target_parameters");
    if (!list || list->is_null()) return;
    if (!list->is_array())
      fail("{}: expected an array as target_parameters, found {}", path_, json::excerpt(*list));
    for (const json::Value& one : list->as_array()) {
      const bool is_known = one.is_string() && (is_module_named(one.as_string(), "gate_up_proj") ||
                                                is_module_named(one.as_string(), "down_proj"));
      if (!is_known)
        fail("{}: expected gate_up_proj or down_proj of experts in \"target_parameters\", found {}",
             path_, json::excerpt(one));
      parameters_.insert(one.as_string().substr(one.as_string().rfind('.') + 1));
    }
  }

  // The first pattern that a module's name ends with says its number, else the key does.
  double number(const char* key, const char* patterns, const std::string& module) const {
    const json::Value* value = root_.find(key);
    if (const json::Value* list = root_.find(patterns); list && list->is_object())
      for (const auto& [pattern, of_pattern] : list->as_object())
        if (is_module_named(module, name_of(pattern))) {
          value = &of_pattern;
          break;
        }
    if (!value || !value->is_number() || !std::isfinite(value->as_number()))
      fail("{}: expected a number as {}, found {}", path_, key,
           value ? json::excerpt(*value) : "none");
    return value->as_number();
  }

  // Patterns are regular expressions; read are those that are names, as PEFT writes them, or stand
  // for all that end with one (".*\\.gate_up_proj").
  static std::string name_of(std::string_view pattern) {
    constexpr std::string_view kAnyBefore = ".*\\.";
    if (pattern.starts_with(kAnyBefore)) pattern.remove_prefix(kAnyBefore.size());
    std::string name;
    for (size_t i = pattern.starts_with('^') ? 1 : 0; i < pattern.size(); ++i)
      if (pattern[i] != '\\') name += pattern[i];
    return name;
  }

  void expect_plain_patterns(const char* key) const {
    const json::Value* list = root_.find(key);
    if (!list || list->is_null()) return;
    if (!list->is_object())
      fail("{}: expected an object as {}, found {}", path_, key, json::excerpt(*list));
    const auto is_plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '.' || c == '-';
    };
    for (const auto& [pattern, value] : list->as_object())
      if (!std::ranges::all_of(name_of(pattern), is_plain))
        fail("{}: expected names of modules in {}, found {}", path_, key, json::quoted(pattern));
  }

  std::string path_;
  json::Value root_;
  bool by_root_ = false;
  std::set<std::string> parameters_;
};

// The module of a tensor of A or B; none for another tensor.
std::optional<std::string> module_of(std::string_view tensor, std::string_view which) {
  if (!tensor.starts_with(kPrefix)) return std::nullopt;
  tensor.remove_prefix(kPrefix.size());
  for (const std::string_view name : {".weight", ".default.weight"}) {
    const std::string end = fmt::format(".{}{}", which, name);
    if (tensor.ends_with(end)) return std::string(tensor.substr(0, tensor.size() - end.size()));
  }
  return std::nullopt;
}

// The tensors of each module; one that is neither an A nor a B is refused.
std::map<std::string, AdapterFactors> tensors_by_module(const TensorSource& tensors) {
  std::map<std::string, AdapterFactors> modules;
  for (const std::string& name : tensors.names()) {
    if (const auto of_a = module_of(name, "lora_A"))
      modules[*of_a].a = name;
    else if (const auto of_b = module_of(name, "lora_B"))
      modules[*of_b].b = name;
    else
      fail("{}: expected lora_A.weight or lora_B.weight of a module, found neither",
           tensors.where(name));
  }
  if (modules.empty()) fail("{}: expected tensors of an adapter, found none", tensors.where(""));
  return modules;
}

}  // namespace

LoraAdapter open_peft_adapter(const std::string& directory) {
  std::error_code ignored;
  for (const char* name : {kConfig, kTensors})
    if (!std::filesystem::exists(join(directory, name), ignored))
      fail(
          "{}: expected an adapter as PEFT saves it, found no {}{}", directory, name,
          name == kTensors && std::filesystem::exists(join(directory, "adapter_model.bin"), ignored)
              ? " (adapter_model.bin is not read: save it as safetensors)"
              : "");
  const Config config(join(directory, kConfig));
  std::unique_ptr<TensorSource> tensors = open_tensors(directory, kTensors);
  std::vector<AdapterModule> modules;
  std::map<std::string, StackedExperts> stacks;
  for (const auto& [name, factors] : tensors_by_module(*tensors)) {
    if (const std::string experts = experts_module(name); !experts.empty()) {
      stacks.try_emplace(experts, StackedExperts{experts, {}})
          .first->second.factors.push_back(factors);
      continue;
    }
    AdapterModule module = adapter_module(
        *tensors, name, factors, [&name = name](char which) { return peft_name(name, which); });
    const int64_t rank = config.rank_of(name);
    if (module.rank != rank)
      fail("{}: expected the rank {} of the configuration, found A of [{}, {}]",
           tensors->where(factors.a), rank, module.rank, module.inputs);
    module.scale = config.scale_of(name, rank);
    modules.push_back(std::move(module));
  }
  if (!stacks.empty()) {
    const auto rank = [&](const std::string& name) { return config.rank_of(name); };
    const auto scale = [&](const std::string& name, int64_t r) { return config.scale_of(name, r); };
    tensors =
        split_experts(std::move(tensors), stacks, {config.parameters(), rank, scale}, modules);
    std::ranges::sort(modules, {}, &AdapterModule::name);
  }
  return LoraAdapter(directory, std::move(modules), std::move(tensors));
}

std::string peft_name(const std::string& module, char which) {
  return fmt::format("{}{}.lora_{}.weight", kPrefix, module, which);
}

bool is_module_named(std::string_view module, std::string_view name) {
  if (!module.ends_with(name)) return false;
  return module.size() == name.size() || module[module.size() - name.size() - 1] == '.';
}

double PeftSettings::scale() const {
  const double r = static_cast<double>(rank);
  return alpha / (by_root ? std::sqrt(r) : r);
}

void write_peft_adapter(const std::string& directory, const std::vector<AdapterModule>& modules,
                        const PeftSettings& settings, const TensorSource& tensors,
                        ThreadPool& pool) {
  make_directories(directory);
  std::set<std::string> targets(settings.targets.begin(), settings.targets.end());
  if (targets.empty())  // the last parts of the modules' names
    for (const AdapterModule& module : modules)
      targets.insert(module.name.substr(module.name.rfind('.') + 1));
  write_tensors(join(directory, kTensors), tensors, pool);
  json::Value config = json::Object{
      {"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"},
      {"r", settings.rank},  {"lora_alpha", settings.alpha},
      {"lora_dropout", 0.0}, {"target_modules", json::Array(targets.begin(), targets.end())},
      {"bias", "none"},      {"inference_mode", true}};
  if (settings.by_root) config.set("use_rslora", true);
  if (!settings.base.empty()) config.set("base_model_name_or_path", settings.base);
  write_file_atomically(join(directory, kConfig), json::dump(config, 2));
}

}  // namespace invar
