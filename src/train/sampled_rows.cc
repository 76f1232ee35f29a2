#include "train/sampled_rows.h"

#include <algorithm>

#include "base/error.h"
#include "numerics/math.h"
#include "sampling/sampler.h"

namespace invar {

bool changes_rows(const SamplingParams& p) {
  return p.temperature != 1 || p.top_p != 1 || p.top_k > 0 || p.min_p != 0;
}

SampledRows::SampledRows(Device& device, const SamplingParams& params, int64_t max_rows,
                         int64_t vocab)
    : memory_(device),
      params_(checked(params, static_cast<int32_t>(vocab))),
      vocab_(static_cast<size_t>(vocab)),
      rows_(device, static_cast<size_t>(max_rows * vocab), "logits by the temperature") {
  if (params_.is_greedy())
    fail_usage("expected a temperature above 0, at which answers are samples, found 0");
}

void SampledRows::process_host(const float* from, std::span<const float> weights, float* to,
                               ThreadPool& pool) {
  pool.run([&](Part part) {
    const ScopedFlushToZero flush;
    Sampler sampler;
    for (size_t t = part.index; t < weights.size(); t += part.count) {
      const std::span row(from + t * vocab_, vocab_);
      const bool is_left =
          weights[t] == 0 || sampler.process({.logits = row, .params = &params_, .given = 0});
      const std::span<const float> done = is_left ? row : sampler.processed().values();
      std::ranges::copy(done, to + t * vocab_);
    }
  });
}

const float* SampledRows::process(const float* logits, std::span<const float> weights,
                                  ThreadPool& pool) {
  if (memory_.is_host()) {
    process_host(logits, weights, rows_.data(), pool);
    return rows_.data();
  }
  constexpr size_t kPiece = 64;  // rows that the host has at once
  std::vector<float> fetched(kPiece * vocab_), processed(kPiece * vocab_);
  for (size_t first = 0; first < weights.size(); first += kPiece) {
    const auto piece = weights.subspan(first, std::min(kPiece, weights.size() - first));
    const size_t bytes = piece.size() * vocab_ * sizeof(float);
    memory_.download(fetched.data(), logits + first * vocab_, bytes);
    process_host(fetched.data(), piece, processed.data(), pool);
    memory_.upload(rows_.data() + first * vocab_, processed.data(), bytes);
  }
  return rows_.data();
}

}  // namespace invar
