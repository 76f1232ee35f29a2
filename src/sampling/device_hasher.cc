#include "sampling/device_hasher.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"

namespace invar {

namespace {

constexpr const char* kHashes = "the hashes of logits";
constexpr size_t kDigest = sizeof(Digest);
// More logits are hashed where they are, and what follows in the stream waits.
constexpr size_t kMostKept = 64 << 20;

}  // namespace

DeviceHasher::DeviceHasher(Operation<HashLogitsParams> hash, const Execution& on, size_t max_rows)
    : hash_(hash),
      main_(on),
      max_rows_(max_rows),
      beside_(on.device->make_stream()),
      kept_(on.device->make_event()),
      done_(on.device->make_event()) {}

void DeviceHasher::start(const float* logits, int64_t all, int64_t vocab, const int32_t* rows,
                         int64_t count) {
  CHECK(hash_, "a sampler that was made without a hash");
  constexpr int64_t kChunk = 4096;
  const size_t chunks = max_rows_ * static_cast<size_t>((vocab + kChunk - 1) / kChunk);
  if (chunks_.size() < chunks * kDigest) {
    chunks_ = {*main_.device, chunks * kDigest, kHashes};
    device_digests_ = {*main_.device, max_rows_ * kDigest, kHashes};
    host_digests_ = {*main_.device, max_rows_ * kDigest, kHashes};
  }
  const float* kept = keep(logits, all, vocab);
  Execution on = main_;
  if (kept != logits) {
    main_.stream->record(*kept_);
    on.stream = beside_.get();
    on.stream->wait_for(*kept_);
  }
  on.run(hash_, HashLogitsParams{.logits = kept,
                                 .vocab = vocab,
                                 .rows = rows,
                                 .count = count,
                                 .chunks = chunks_.data(),
                                 .digests = device_digests_.data()});
  const size_t bytes = static_cast<size_t>(count) * kDigest;
  on.stream->download(host_digests_.data(), device_digests_.data(), bytes);
  on.stream->record(*done_);
  digests_.resize(static_cast<size_t>(count));
}

// A copy, whose reader before this one has come to its end: `wait` was called since. Its memory is
// taken once, for all rows that there may be; where there is none left, the logits are hashed where
// they are.
const float* DeviceHasher::keep(const float* logits, int64_t all, int64_t vocab) {
  const size_t row = static_cast<size_t>(vocab), rows = std::min(max_rows_, kMostKept / row);
  if (main_.device->is_host() || static_cast<size_t>(all) > rows) return logits;
  if (logits_.size() < rows * row) {
    if (has_no_room_) return logits;
    try {
      logits_ = {*main_.device, rows * row, kHashes};
    } catch (const Error&) {
      has_no_room_ = true;
      return logits;
    }
  }
  const size_t bytes = static_cast<size_t>(all) * row * sizeof(float);
  main_.stream->copy_rows(logits_.data(), bytes, logits, bytes, bytes, 1);
  return logits_.data();
}

void DeviceHasher::wait() {
  done_->wait();
  if (!digests_.empty())
    std::memcpy(digests_.data(), host_digests_.data(), digests_.size() * kDigest);
}

}  // namespace invar
