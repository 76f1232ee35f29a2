// Samples on a device from logits that stay there: the tokens that Sampler gives. Only for rows
// without masks, biases, penalties and filters, which need the host.
#pragma once

#include <span>
#include <vector>

#include "kernels/inference.h"
#include "sampling/sampler.h"

namespace invar {

class DeviceSampler {
 public:
  // For up to `max_rows` rows at a time, by a table's `sample`, in the order of the execution's
  // stream.
  DeviceSampler(Operation<SampleParams> operation, const Execution& on, int max_rows);

  // Whether this row can be sampled here; its logits are not read.
  static bool can(const SampleInput& input);
  // One token for each row of `logits`, [rows][vocab] on the device. Valid until the next call.
  // The only wait of a step: everything in the stream before it is done, too.
  std::span<const Sampled> sample(const float* logits, int64_t vocab,
                                  std::span<const SampleInput> rows);

 private:
  Operation<SampleParams> operation_;
  Execution on_;
  DeviceArray<SampledRow> rows_;
  DeviceArray<int32_t> tokens_;
  PinnedArray<SampledRow> host_rows_;
  PinnedArray<int32_t> host_tokens_;
  std::vector<Sampled> sampled_;
};

}  // namespace invar
