#include "model/pooling.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "base/error.h"

namespace invar {

namespace {

namespace fs = std::filesystem;

constexpr json::ParseLimits kLimits = {.max_depth = 8, .max_bytes = 1 << 20};
constexpr std::string_view kPrefix = "pooling_mode_";

struct KindName {
  std::string_view key, word;  // the older spelling's, behind kPrefix, and the newer one's
  Pooling::Kind kind;
  std::string_view name;  // in digests
};
constexpr std::array kKinds = {
    KindName{"mean_tokens", "mean", Pooling::Kind::mean, "mean"},
    KindName{"lasttoken", "lasttoken", Pooling::Kind::last, "last"},
    KindName{"cls_token", "cls", Pooling::Kind::first, "first"},
};

json::Value read_file(const std::string& path) {
  json::Value value = json::parse_file(path, kLimits);
  return value;
}

std::string text_of(const json::Value& object, std::string_view key) {
  const json::Value* value = object.is_object() ? object.find(key) : nullptr;
  return value && value->is_string() ? value->as_string() : std::string();
}

[[noreturn]] void fail_kind(const std::string& path, std::string_view found) {
  fail("{}: expected a pooling by mean, lasttoken or cls, found {}", path, found);
}

// The one kind that is switched on: several would be put one behind the other.
Pooling::Kind kind_of(const json::Value& config, const std::string& path) {
  if (!config.is_object()) fail("{}: expected a JSON object, found {}", path, config.type_name());
  std::string found = text_of(config, "pooling_mode");
  for (const auto& [key, value] : config.as_object())
    if (key.starts_with(kPrefix) && value == json::Value(true))
      found += (found.empty() ? "" : " and ") + key.substr(kPrefix.size());
  for (const KindName& kind : kKinds)
    if (found == kind.key || found == kind.word) return kind.kind;
  fail_kind(path, found.empty() ? "none" : std::string_view(found));
}

// A name that comes from a file stays inside the directory.
std::string inside(const std::string& directory, const std::string& name,
                   const std::string& where) {
  const fs::path path(name);
  const bool leaves = path.is_absolute() || name.find('\0') != std::string::npos ||
                      std::ranges::find(path, fs::path("..")) != path.end();
  if (leaves) fail("{}: expected a path inside the directory, found {}", where, json::quoted(name));
  return (fs::path(directory) / path).string();
}

void add_module(const json::Value& module, const std::string& directory, const std::string& where,
                Pooling& pooling) {
  const std::string type = text_of(module, "type");
  const std::string name = type.substr(type.rfind('.') + 1);
  const std::string at = inside(directory, text_of(module, "path"), where);
  if (name == "Pooling")
    pooling.kind = kind_of(read_file(at + "/config.json"), at + "/config.json");
  else if (name == "Normalize")
    pooling.is_normalized = true;
  else if (name == "Dense")
    pooling.dense.push_back(read_dense_module(at));
  else if (name != "Transformer")
    fail("{}: expected modules of Transformer, Pooling, Dense and Normalize, found {}", where,
         json::quoted(type));
}

// Each takes what the one before gives, and nothing is normalized between them.
void check_dense(const Pooling& pooling, int64_t hidden, const std::string& where) {
  for (const DenseModule& module : pooling.dense) {
    if (module.inputs != hidden)
      fail("{}: expected a dense module of {} inputs, found one of {}", where, hidden,
           module.inputs);
    hidden = module.outputs;
  }
}

}  // namespace

Pooling read_pooling(const std::string& directory, int64_t hidden) {
  Pooling pooling;
  std::error_code ignored;
  const std::string modules = directory + "/modules.json";
  const std::string alone = directory + "/1_Pooling/config.json";
  const bool has_modules = fs::exists(modules, ignored);
  if (!has_modules && !fs::exists(alone, ignored)) return pooling;
  pooling.final_norm = true;  // what transformers calls last_hidden_state
  if (has_modules) {
    const json::Value list = read_file(modules);
    if (!list.is_array() || list.as_array().size() > 16)
      fail("{}: expected a list of up to 16 modules, found {}", modules, json::excerpt(list));
    for (const json::Value& module : list.as_array())
      add_module(module, directory, modules, pooling);
    check_dense(pooling, hidden, modules);
  } else {
    pooling.kind = kind_of(read_file(alone), alone);
    pooling.is_normalized = fs::exists(directory + "/2_Normalize", ignored);
  }
  return pooling;
}

json::Value to_json(const Pooling& pooling) {
  const auto kind = std::ranges::find(kKinds, pooling.kind, &KindName::kind);
  json::Value object = json::Object{{"kind", kind->name},
                                    {"final_norm", pooling.final_norm},
                                    {"normalized", pooling.is_normalized}};
  json::Array dense;
  for (const DenseModule& module : pooling.dense) dense.push_back(to_json(module));
  if (!dense.empty()) object.set("dense", std::move(dense));
  return object;
}

}  // namespace invar
