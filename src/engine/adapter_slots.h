// Which adapter of the live requests is in which of an engine's slots. A slot keeps its adapter
// when nobody uses it any longer; the one that was unused for the longest makes room.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "model/batch.h"

namespace invar {

// Bounds of the adapters that requests may ask of an engine.
struct AdapterLimits {
  int most = 0;  // different ones at a time; 0: none
  int most_rank = 16;
  bool operator==(const AdapterLimits&) const = default;
};

class AdapterSlots {
 public:
  explicit AdapterSlots(const AdapterLimits& limits)
      : most_rank_(limits.most_rank), slots_(static_cast<size_t>(limits.most)) {}

  // Throws UsageError for an adapter that no slot can hold.
  void expect_possible(const RequestAdapter& adapter) const;
  // A slot for one more request, or nothing while requests with other adapters have all of them.
  std::optional<int32_t> take(const RequestAdapter& adapter);
  // A request is over. `failed`: the adapter is to be read again.
  void give_back(int32_t slot, bool failed);
  // Tells a batch what comes into this slot, unless the runners have it.
  void load(int32_t slot, std::vector<AdapterLoad>& loads);
  // The runners are new.
  void forget_loaded();

  // Requests that wait for a slot, in the order in which they came.
  std::deque<int64_t> waiting;

 private:
  struct Slot {
    RequestAdapter adapter;
    int64_t used = 0;  // when it was last taken; 0: never
    int live = 0;      // requests
    bool is_loaded = false;
  };

  int most_rank_;
  std::vector<Slot> slots_;
  int64_t takes_ = 0;
};

}  // namespace invar
