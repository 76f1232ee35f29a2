#include "model/families/hybrid.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace invar {

std::vector<size_t> read_kinds(ConfigReader& reader, std::string_view key, int layers,
                               std::span<const std::string_view> names) {
  std::vector<size_t> kinds;
  const json::Value* listed = reader.take(key);
  if (!listed) return kinds;
  const auto kind_of = [&](const json::Value& name) {
    const auto is_name = [&](std::string_view other) { return name == json::Value(other); };
    return static_cast<size_t>(std::ranges::find_if(names, is_name) - names.begin());
  };
  if (listed->is_array())
    for (const json::Value& name : listed->as_array()) kinds.push_back(kind_of(name));
  if (std::ssize(kinds) != layers || std::ranges::count(kinds, names.size()))
    fail("{}: \"{}\": expected an array of {} names of {}, found {}", reader.where(), key, layers,
         fmt::join(names, ", "), json::excerpt(*listed));
  return kinds;
}

namespace {

constexpr const char* kStepLimits = "time_step_limit";

// An infinite number as config.json has it, since JSON has none.
json::Value infinity() {
  return json::Object{{"__float__", "Infinity"}};
}

}  // namespace

void read_step_limits(ConfigReader& reader, StateSpaceSpec& spec) {
  const json::Value* limits = reader.take(kStepLimits);
  if (!limits) return;
  const bool is_pair = limits->is_array() && limits->as_array().size() == 2 &&
                       limits->as_array()[0].is_number() &&
                       (limits->as_array()[1].is_number() || limits->as_array()[1] == infinity());
  if (!is_pair)
    fail("{}: \"{}\": expected two numbers, found {}", reader.where(), kStepLimits,
         json::excerpt(*limits));
  const json::Array& pair = limits->as_array();
  spec.least_step = static_cast<float>(pair[0].as_number());
  if (pair[1].is_number()) spec.most_step = static_cast<float>(pair[1].as_number());
}

void write_step_limits(const StateSpaceSpec& spec, json::Value& config) {
  const json::Value most =
      std::isinf(spec.most_step) ? infinity() : json::Value(json::shortest(spec.most_step));
  config.set(kStepLimits, json::Array{json::shortest(spec.least_step), most});
}

StoredAt stored_tap(const TensorSpec& tensor, std::string name, int64_t channels, int64_t first,
                    int taps) {
  return {
      .tensor = std::move(name),
      .row = [=, tap = tensor.expert](int64_t channel) { return (first + channel) * taps + tap; },
      .shape = {channels, 1, taps}};
}

StoredAt stored_state_space(const StateSpaceSpec& spec, const TensorSpec& tensor,
                            const std::string& module) {
  using enum TensorRole;
  const int64_t values = spec.width(), keys = int64_t{spec.groups} * spec.state_size;
  const int64_t channels = values + 2 * keys;
  const std::string inputs = module + "in_proj.weight", bias = module + "conv1d.bias";
  const auto tap = [&](int64_t first) {
    return stored_tap(tensor, module + "conv1d.weight", channels, first, spec.taps);
  };
  switch (tensor.role) {
    case recurrent_gate:
      return {inputs, behind(0)};
    case recurrent_v:
      return {inputs, behind(values)};
    case recurrent_k:
      return {inputs, behind(2 * values)};
    case recurrent_q:
      return {inputs, behind(2 * values + keys)};
    case recurrent_decay:
      return {inputs, behind(2 * values + 2 * keys)};
    case conv_v:
      return tap(0);
    case conv_k:
      return tap(values);
    case conv_q:
      return tap(values + keys);
    case conv_v_bias:
      return {bias, behind(0)};
    case conv_k_bias:
      return {bias, behind(values)};
    case conv_q_bias:
      return {bias, behind(values + keys)};
    default:
      return {module + tensor.name.substr(tensor.name.find("mamba.") + 6)};
  }
}

}  // namespace invar
