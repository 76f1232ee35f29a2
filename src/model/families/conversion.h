// Options of a conversion beside its source and its target.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace invar {

struct Conversion {
  std::function<void(int64_t, int64_t)> progress = {};  // is told bytes done and bytes in all
  std::vector<std::string> ignored_config_keys = {};    // as parse_model_config takes them
};

}  // namespace invar
