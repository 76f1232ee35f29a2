// Samples on a device from logits that stay there: the tokens that Sampler gives, with the
// log-probabilities that LogprobReader gives and the hashes of PositionHasher.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "sampling/device_hasher.h"
#include "sampling/logprob.h"
#include "sampling/sampler.h"

namespace invar {

struct DeviceSampled : Sampled {
  TokenLogprobs logprobs;  // when the input wants them and there is a token
  Digest digest{};         // when it wants the hash
};

class DeviceSampler {
 public:
  // For up to `max_rows` rows at a time, by a table's `sample`, in the order of the execution's
  // stream; by its `hash_logits` for rows that want a hash.
  DeviceSampler(Operation<SampleRowsParams> sample, const Execution& on, int max_rows,
                Operation<HashLogitsParams> hash = nullptr);

  // Whether this row can be sampled here; its logits are not read.
  static bool can(const SampleInput& input);
  // Puts the sampling of one token for each row of `logits`, [rows][vocab] on the device, into the
  // stream.
  void start(const float* logits, int64_t vocab, std::span<const SampleInput> rows);
  // Where the tokens lie on the device then, in the order of the rows, 0 for none; until the next
  // start.
  const int32_t* ids() const { return ids_.data(); }
  // The samples of the same rows. Waits for them, but not for operations that were put into the
  // stream since. Valid until the next start.
  std::span<const DeviceSampled> finish(std::span<const SampleInput> rows);
  // The same wait, and nothing is read.
  void wait();
  // Both.
  std::span<const DeviceSampled> sample(const float* logits, int64_t vocab,
                                        std::span<const SampleInput> rows) {
    start(logits, vocab, rows);
    return finish(rows);
  }

 private:
  void gather(const SampleInput& in, int64_t vocab);
  int32_t add_mask(const SampleInput& in, int64_t vocab);
  SampleRowsParams send(const float* logits, int64_t vocab);
  void take(std::span<const SampleInput> rows);

  const Operation<SampleRowsParams> sample_;
  const Execution on_;
  const size_t max_rows_;
  const std::unique_ptr<Event> done_;
  DeviceHasher hasher_;

  // Rows of the current call, as the device gets them.
  std::vector<SampledRow> rows_;
  std::vector<uint64_t> masks_;
  std::vector<TokenBias> biases_;
  std::vector<TokenCount> counts_;
  std::vector<int32_t> hashed_;  // rows
  bool wants_top_ = false;

  // The lists on their way, one after the other; they grow to the largest call.
  PinnedArray<std::byte> host_lists_;
  DeviceArray<std::byte> lists_;
  const int32_t* device_hashed_ = nullptr;

  DeviceArray<SampledToken> tokens_;
  DeviceArray<int32_t> ids_;
  DeviceArray<TopToken> top_;  // [rows][kMostTop]
  PinnedArray<SampledToken> host_tokens_;
  PinnedArray<TopToken> host_top_;
  std::vector<DeviceSampled> sampled_;
};

}  // namespace invar
