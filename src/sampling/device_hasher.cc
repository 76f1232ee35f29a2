#include "sampling/device_hasher.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace invar {

namespace {

constexpr const char* kHashes = "the hashes of logits";
constexpr size_t kDigest = sizeof(Digest);
// Logits of more bytes are hashed where they are, and what follows in the stream waits.
constexpr size_t kMostKept = 256 << 20;

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

// A copy, whose reader before this one has come to its end: `wait` was called since.
const float* DeviceHasher::keep(const float* logits, int64_t all, int64_t vocab) {
  const size_t values = static_cast<size_t>(all * vocab), bytes = values * sizeof(float);
  if (main_.device->is_host() || bytes > kMostKept) return logits;
  if (logits_.size() < values) {
    const size_t rows = std::min(max_rows_, std::bit_ceil(static_cast<size_t>(all)));
    logits_ = {*main_.device, rows * static_cast<size_t>(vocab), kHashes};
  }
  main_.stream->copy_rows(logits_.data(), bytes, logits, bytes, bytes, 1);
  return logits_.data();
}

void DeviceHasher::wait() {
  done_->wait();
  if (!digests_.empty())
    std::memcpy(digests_.data(), host_digests_.data(), digests_.size() * kDigest);
}

}  // namespace invar
