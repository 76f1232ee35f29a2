#include "engine/adapter_slots.h"

#include <algorithm>

#include "base/error.h"

namespace invar {

void AdapterSlots::expect_possible(const RequestAdapter& adapter) const {
  if (slots_.empty()) fail_usage("adapters were not enabled when the engine started");
  if (adapter.rank > most_rank_)
    fail_usage("the adapter {} has rank {}, and at most {} was allowed when the engine started",
               adapter.name, adapter.rank, most_rank_);
}

std::optional<int32_t> AdapterSlots::take(const RequestAdapter& adapter) {
  const auto is_same = [&](const Slot& slot) {
    return slot.used > 0 && slot.adapter.digest == adapter.digest &&
           slot.adapter.directory == adapter.directory;
  };
  auto found = std::ranges::find_if(slots_, is_same);
  if (found == slots_.end()) {
    for (auto slot = slots_.begin(); slot != slots_.end(); ++slot)
      if (slot->live == 0 && (found == slots_.end() || slot->used < found->used)) found = slot;
    if (found == slots_.end()) return std::nullopt;
    *found = {.adapter = adapter};
  }
  found->used = ++takes_;
  ++found->live;
  return static_cast<int32_t>(found - slots_.begin());
}

void AdapterSlots::give_back(int32_t slot, bool failed) {
  Slot& of = slots_[static_cast<size_t>(slot)];
  --of.live;
  if (failed) of.is_loaded = false;
}

void AdapterSlots::load(int32_t slot, std::vector<AdapterLoad>& loads) {
  Slot& of = slots_[static_cast<size_t>(slot)];
  if (of.is_loaded) return;
  of.is_loaded = true;
  loads.push_back({slot, of.adapter.rank, of.adapter.directory, to_hex(of.adapter.digest)});
}

void AdapterSlots::forget_loaded() {
  for (Slot& slot : slots_) slot.is_loaded = false;
}

}  // namespace invar
