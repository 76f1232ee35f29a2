#include "numerics/logits_hash.h"

#include <algorithm>
#include <cstring>

namespace invar {

Digest PositionHasher::operator()(std::span<const float> logits) {
  all_.restart();
  for (size_t begin = 0; begin < logits.size(); begin += 4096) {
    const size_t count = std::min<size_t>(4096, logits.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      const float x = logits[begin + i];
      buffer_[i] = x == 0.0f ? 0.0f : x;  // -0 as +0
    }
    chunk_.restart();
    chunk_.update(std::as_bytes(std::span(buffer_, count)));
    const Digest digest = chunk_.finish();
    all_.update(std::as_bytes(std::span(digest)));
  }
  return all_.finish();
}

void LogitsHash::add(const Digest& position) {
  Digest both[2] = {value_, position};
  value_ = sha256(std::as_bytes(std::span(both)));
}

}  // namespace invar
