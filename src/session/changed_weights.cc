#include "session/changed_weights.h"

namespace invar {

void ChangedWeights::read(std::string_view name, int64_t first, int64_t count, DType as,
                          void* out) const {
  const auto found = gpu_.find(name);
  if (found == gpu_.end()) return changed_.read(name, first, count, as, out);
  const auto& [info, data] = found->second;
  const auto element = static_cast<int64_t>(size_of(info.dtype));
  std::vector<std::byte> stored(static_cast<size_t>(count * element));
  device_.download(stored.data(), data + first * element, stored.size());
  convert_elements(stored.data(), info.dtype, count, as, out);
}

void WeightsAsTheyAre::read(std::string_view name, int64_t first, int64_t count, DType as,
                            void* out) const {
  if (!only_on_gpu_.contains(name)) return updated_.read(name, first, count, as, out);
  if (name_ != name) {
    bytes_ = model_.read_back(base_, std::string(name));
    name_ = name;
  }
  const DType type = info(name).dtype;
  convert_elements(bytes_.data() + first * static_cast<int64_t>(size_of(type)), type, count, as,
                   out);
}

}  // namespace invar
