#include "session/updated_weights.h"

#include "base/json.h"

namespace invar {

const TensorInfo& UpdatedWeights::info(std::string_view name) const {
  const auto found = updated_.find(name);
  return found == updated_.end() ? base_.info(name) : found->second.info;
}

void UpdatedWeights::read(std::string_view name, int64_t first, int64_t count, DType as,
                          void* out) const {
  const auto found = updated_.find(name);
  if (found == updated_.end()) return base_.read(name, first, count, as, out);
  const auto& [info, bytes] = found->second;
  convert_elements(bytes.data() + first * static_cast<int64_t>(size_of(info.dtype)), info.dtype,
                   count, as, out);
}

std::string UpdatedWeights::where(std::string_view name) const {
  if (!updated_.contains(name)) return base_.where(name);
  return "update_weights: " + json::quoted(std::string(name));
}

}  // namespace invar
