#include "speculative/rejection.h"

#include "numerics/math.h"

namespace invar {

int32_t sample_by_rejection(Sampler& sampler, const SampleInput& input, const DraftTree* tree,
                            int32_t node) {
  NoiseKey key{.seed = input.params->seed,
               .position = static_cast<uint32_t>(input.position),
               .choice = static_cast<uint32_t>(input.choice),
               .purpose = RandomPurpose::accept};
  LogitRow& row = sampler.processed();
  const float max = row.largest().value;
  double left = 0;  // of the distribution, times a constant
  for (const float value : row.values())
    if (value != kExcluded) left += math::exp(value - max);
  int32_t last_tried = -1;
  for (int32_t child = node + 1; tree && child < std::ssize(*tree); ++child) {
    const auto [token, parent] = (*tree)[static_cast<size_t>(child)];
    float& value = row.values()[static_cast<size_t>(token)];
    if (parent != node || value == kExcluded) continue;
    const double weight = math::exp(value - max);
    if (uniform_of(random_bits(key, static_cast<uint32_t>(token))) * left < weight) return token;
    left -= weight;
    value = kExcluded;
    last_tried = token;
  }
  if (last_tried >= 0) {
    row.update_maxima();
    if (row.largest().value == kExcluded) return last_tried;  // all else was rounding
  }
  key.purpose = RandomPurpose::residual;
  return sampler.sample(key);
}

}  // namespace invar
