#include "model/expert_placement.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/number_of.h"

namespace invar {

std::vector<int32_t> ExpertPlacement::experts_at(int experts, int ranks) const {
  std::vector<int32_t> at(static_cast<size_t>(places(experts)));
  std::iota(at.begin(), at.begin() + experts, 0);
  std::iota(at.begin() + experts, at.end(), 0);  // the copies
  if (order == Order::round_robin)
    std::ranges::stable_sort(at, {}, [&](int32_t expert) { return expert % ranks; });
  std::mt19937 random(seed);  // whose numbers the language fixes; std::shuffle's use of them not
  for (size_t i = at.size(); order == Order::shuffled && i > 1; --i)
    std::swap(at[i - 1], at[random() % i]);
  return at;
}

std::vector<int32_t> ExpertPlacement::places_of(int experts, int ranks) const {
  std::vector<int32_t> places(2 * static_cast<size_t>(experts), -1);
  const std::vector<int32_t> at = experts_at(experts, ranks);
  for (size_t place = 0; place < at.size(); ++place) {
    int32_t* of = places.data() + 2 * static_cast<size_t>(at[place]);
    of[1] = static_cast<int32_t>(place);
    if (of[0] < 0) of[0] = of[1];
  }
  return places;
}

ExpertPlacement parse_expert_placement(const std::string& strategy, int copies) {
  constexpr std::string_view kShuffled = "shuffled:";
  ExpertPlacement placement{.copies = copies};
  if (copies < 0) fail_usage("expected 0 or more redundant experts, found {}", copies);
  if (strategy == "linear") return placement;
  placement.order = ExpertPlacement::Order::round_robin;
  if (strategy == "round_robin") return placement;
  placement.order = ExpertPlacement::Order::shuffled;
  if (strategy.starts_with(kShuffled))
    if (const auto seed = number_of<uint32_t>(strategy.substr(kShuffled.size()))) {
      placement.seed = *seed;
      return placement;
    }
  fail_usage("expected experts placed linear, round_robin or shuffled:SEED, found {}",
             json::quoted(strategy));
}

}  // namespace invar
