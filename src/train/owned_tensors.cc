#include "train/owned_tensors.h"

namespace invar {

std::vector<OwnedTensors> share_tensors(const ParameterLayout& layout, int ranks) {
  std::vector<OwnedTensors> shares;
  const auto& slots = layout.slots();
  size_t next = 0;
  for (int r = 1; r <= ranks; ++r) {
    // A tensor goes to the rank in whose equal part its middle lies.
    const int64_t ideal = layout.size() / ranks * r;
    while (next < slots.size() && slots[next].offset + slots[next].count / 2 < ideal) ++next;
    const int64_t begin = shares.empty() ? 0 : shares.back().end;
    const bool last = r == ranks || next == slots.size();
    shares.push_back({begin, last ? layout.size() : slots[next].offset});
  }
  return shares;
}

}  // namespace invar
