#include "engine/sleep.h"

#include "base/error.h"
#include "base/json.h"

namespace invar {

Sleep Sleep::of_level(int level) {
  if (level != 1 && level != 2) fail_usage("expected the sleep level 1 or 2, found {}", level);
  return {.kv_cache = true, .weights = level == 1 ? Weights::kept : Weights::lost};
}

Wake Wake::of_tags(const std::vector<std::string>& tags) {
  if (tags.empty()) return {};
  Wake wake{.kv_cache = false, .weights = false};
  for (const std::string& tag : tags) {
    if (tag != "weights" && tag != "kv_cache")
      fail_usage("expected the tags \"weights\" and \"kv_cache\", found {}", json::quoted(tag));
    (tag == "weights" ? wake.weights : wake.kv_cache) = true;
  }
  return wake;
}

}  // namespace invar
