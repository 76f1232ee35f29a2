// A --speculative-config whose drafts are as long as it says, unless it says "adaptive" itself: a
// test of drafts wants them whether or not they pay.
#pragma once

#include <string>

#include "speculative/config.h"

namespace invar {

inline SpeculativeConfig fixed_drafts(const std::string& json) {
  SpeculativeConfig config = parse_speculative_config(json);
  if (json.find("\"adaptive\"") == json.npos) config.adaptive = false;
  return config;
}

}  // namespace invar
