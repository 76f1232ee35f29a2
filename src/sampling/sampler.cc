#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/thread_pool.h"
#include "numerics/math.h"
#include "numerics/orders.h"
#include "numerics/philox.h"

namespace invar {

void validate(const SamplingParams& p, int vocab) {
  if (!(p.temperature >= 0.0f) || !std::isfinite(p.temperature))
    fail_usage("expected a temperature of 0 or more, found {}", p.temperature);
  if (p.max_tokens < 1) fail_usage("expected max_tokens of 1 or more, found {}", p.max_tokens);
  for (const int32_t id : p.stop_token_ids)
    if (id < 0 || id >= vocab)
      fail_usage("expected stop_token_ids from 0 to {}, found {}", vocab - 1, id);
}

bool is_stop(const SamplingParams& params, int32_t token) {
  const auto& stops = params.stop_token_ids;
  return std::find(stops.begin(), stops.end(), token) != stops.end();
}

namespace {

// Noise of tokens 4 * block .. 4 * block + 3.
struct Gumbel {
  double value[4];
  Gumbel(const SamplingParams& params, int32_t position, int32_t choice, uint32_t block) {
    const PhiloxCounter x =
        philox4x32({static_cast<uint32_t>(position), block, static_cast<uint32_t>(choice),
                    static_cast<uint32_t>(RandomPurpose::draw)},
                   params.seed);
    for (int i = 0; i < 4; ++i) value[i] = -math::log(-math::log((x[i] + 0.5) * 0x1p-32));
  }
};

bool has_nan(std::span<const float> logits) {
  bool found = false;
  for (const float x : logits) found |= x != x;
  return found;
}

}  // namespace

Drawn Sampler::draw(std::span<const float> logits, const SamplingParams& params,
                    const TokenHistory&, int32_t position, int32_t choice) {
  ScopedFlushToZero flush;
  if (has_nan(logits)) return {.failed = true};
  Drawn drawn;
  if (params.temperature == 0.0f) {
    drawn.token =
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  } else {
    double best = -std::numeric_limits<double>::infinity();
    for (size_t begin = 0; begin < logits.size(); begin += 4) {
      const Gumbel noise(params, position, choice, static_cast<uint32_t>(begin / 4));
      for (size_t i = begin; i < std::min(begin + 4, logits.size()); ++i) {
        const double value = double{logits[i] / params.temperature} + noise.value[i - begin];
        if (value > best) best = value, drawn.token = static_cast<int32_t>(i);
      }
    }
  }
  if (params.logprobs) drawn.logprobs = score(logits, params, drawn.token).logprobs;
  return drawn;
}

Drawn Sampler::score(std::span<const float> logits, const SamplingParams&, int32_t token) {
  ScopedFlushToZero flush;
  if (has_nan(logits)) return {.failed = true};
  Drawn drawn{.token = token};
  drawn.logprobs = {token, orders::log_sum_exp(logits).log_probability(logits[token])};
  return drawn;
}

}  // namespace invar
