// Hashes rows of logits (numerics 8) on a device, beside what its stream does next. SHA-256 is a
// chain: of a chunk it takes some 200 us of one lane, however few there are.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "kernels/inference.h"
#include "kernels/sample.h"

namespace invar {

class DeviceHasher {
 public:
  // For up to `max_rows` rows at a time, by a table's `hash_logits`.
  DeviceHasher(Operation<HashLogitsParams> hash, const Execution& on, size_t max_rows);

  // Behind what is in the stream: hashes `count` of the first `all` rows of `logits`, [all][vocab],
  // those that `rows` names; both lie on the device. The logits may be overwritten by what is put
  // into the stream from now on; `rows` must stay.
  void start(const float* logits, int64_t all, int64_t vocab, const int32_t* rows, int64_t count);
  // Until the hashes are there, and so all that was in the stream before `start`.
  void wait();
  // Their digests then, in the order of `rows`; until the next start.
  std::span<const Digest> digests() const { return digests_; }

 private:
  const float* keep(const float* logits, int64_t all, int64_t vocab);

  const Operation<HashLogitsParams> hash_;
  const Execution main_;
  const size_t max_rows_;
  const std::unique_ptr<Stream> beside_;
  const std::unique_ptr<Event> kept_, done_;
  DeviceArray<float> logits_;  // a copy
  bool has_no_room_ = false;   // for one
  DeviceArray<uint8_t> chunks_, device_digests_;
  PinnedArray<uint8_t> host_digests_;
  std::vector<Digest> digests_;
};

}  // namespace invar
