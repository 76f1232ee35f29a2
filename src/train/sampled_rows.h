// Logits as the sampler leaves them that drew an answer (numerics 6, steps 4 and 5): what the
// trainer of a policy measures where a temperature or filters stand between model and answers.
#pragma once

#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/training.h"
#include "sampling/params.h"

namespace invar {

// Whether the rows that are sampled from differ from the model's.
bool changes_rows(const SamplingParams& params);

class SampledRows {
 public:
  // Rows of `vocab` logits, `max_rows` at most. Throws UsageError for parameters out of range, and
  // where they draw no samples (temperature 0).
  SampledRows(Device& device, const SamplingParams& params, int64_t max_rows, int64_t vocab);

  // Where the processed rows lie on the device; those whose weight is 0 are copies. A row without
  // a number in it stays as it is. The threads of `pool` share them.
  const float* process(const float* logits, std::span<const float> weights, ThreadPool& pool);
  // The gradient of a processed row is divided by it.
  float temperature() const { return static_cast<float>(params_.temperature); }

 private:
  void process_host(const float* from, std::span<const float> weights, float* to, ThreadPool& pool);

  Device& memory_;
  const SamplingParams params_;
  const size_t vocab_;
  DeviceArray<float> rows_;
};

}  // namespace invar
