#include "train/owned_tensors.h"

#include <numeric>

namespace invar {

OwnedTensors::OwnedTensors(const ParameterLayout& layout, int ranks)
    : owners_(layout.slots().size()), places_(owners_.size()), counts_(static_cast<size_t>(ranks)) {
  for (const ParameterLayout::Slot& slot : layout.slots()) offsets_.push_back(slot.offset);
  offsets_.push_back(layout.size());
  const auto size = [&](size_t slot) { return offsets_[slot + 1] - offsets_[slot]; };
  std::vector<size_t> largest_first(owners_.size());
  std::iota(largest_first.begin(), largest_first.end(), size_t{0});
  std::ranges::stable_sort(largest_first, std::greater{}, size);
  for (const size_t slot : largest_first) {
    const auto least = std::ranges::min_element(counts_);
    owners_[slot] = static_cast<int>(least - counts_.begin());
    *least += size(slot);
  }
  std::vector<int64_t> filled(counts_.size());
  for (size_t slot = 0; slot < owners_.size(); ++slot) {
    int64_t& place = filled[static_cast<size_t>(owners_[slot])];
    places_[slot] = place;
    place += size(slot);
  }
}

}  // namespace invar
