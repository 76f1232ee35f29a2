// In which order experts lie in memory, and so on which rank each is: schedules, which change no
// bit (numerics 7).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace invar {

struct ExpertPlacement {
  // As they are numbered; dealt out to the ranks in turn; or in some order that the seed says.
  enum class Order : uint8_t { linear, round_robin, shuffled };

  Order order = Order::linear;
  uint32_t seed = 0;  // of `shuffled`
  int copies = 0;     // second copies: of as many experts, the first ones

  bool is_linear() const { return order == Order::linear && copies == 0; }
  // Places in memory, over all ranks.
  int places(int experts) const { return experts + copies; }
  // The expert at each place.
  std::vector<int32_t> experts_at(int experts, int ranks) const;
  // The places of expert e: [e][2], where one without a copy has its place twice. Rows take turns.
  std::vector<int32_t> places_of(int experts, int ranks) const;

  bool operator==(const ExpertPlacement&) const = default;
};

// "linear", "round_robin" or "shuffled:SEED", and second copies. Throws UsageError for others.
ExpertPlacement parse_expert_placement(const std::string& strategy, int copies);

}  // namespace invar
