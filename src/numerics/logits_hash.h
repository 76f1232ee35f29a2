// The hash of logits that every comparison uses (numerics 8).
#pragma once

#include <cstdint>
#include <span>

#include "base/sha256.h"

namespace invar {

// Hash of one position: SHA-256 over the SHA-256s of its 4096-logit chunks (f32, little-endian, -0
// as +0).
class PositionHasher {
 public:
  Digest operator()(std::span<const float> logits);

 private:
  Sha256 chunk_, all_;
  float buffer_[4096];
};

// Hash of a request so far: h_t = SHA-256(h_{t-1} || hash of position t), h_0 = 32 zero bytes.
class LogitsHash {
 public:
  LogitsHash() = default;
  // Goes on from what another one had come to.
  explicit LogitsHash(const Digest& so_far) : value_(so_far) {}
  void add(const Digest& position);
  const Digest& value() const { return value_; }

 private:
  Digest value_{};
};

}  // namespace invar
