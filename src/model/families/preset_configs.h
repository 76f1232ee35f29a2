// Shapes of known models whose configurations say more than sizes.
#pragma once

#include <span>
#include <string_view>

namespace invar {

struct PresetConfig {
  std::string_view name;
  std::string_view config;  // config.json, as far as it says something
};
std::span<const PresetConfig> preset_configs();

}  // namespace invar
