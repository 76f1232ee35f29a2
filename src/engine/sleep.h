// The memory that an engine gives back while it sleeps, and takes again when it wakes up.
#pragma once

#include <string>
#include <vector>

namespace invar {

struct Sleep {
  enum class Weights { stay, kept, lost };  // kept: in the host's memory
  bool kv_cache = true;                     // keys and values, and cells
  Weights weights = Weights::stay;

  bool any() const { return kv_cache || weights != Weights::stay; }
  // vLLM's: 1 keeps the weights, 2 loses them. Throws UsageError for another one.
  static Sleep of_level(int level);
};

struct Wake {
  bool kv_cache = true, weights = true;

  // vLLM's: "weights", "kv_cache"; none: both. Throws UsageError for another one.
  static Wake of_tags(const std::vector<std::string>& tags);
};

}  // namespace invar
