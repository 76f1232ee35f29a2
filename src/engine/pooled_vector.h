// From hidden states to the vector of a text (docs/server.md, embeddings; model/pooling.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/pooling.h"

namespace invar {

// Takes the hidden states of a text one after the other.
class PooledVector {
 public:
  PooledVector() = default;
  PooledVector(int32_t hidden, int32_t text_size, Pooling::Kind kind)
      : numbers_(static_cast<size_t>(hidden), 0.0F), text_size_(text_size), kind_(kind) {}

  int32_t positions() const { return positions_; }  // that it has taken
  // Takes the hidden state of the next position.
  void take(std::span<const float> hidden);
  // After the last one; nothing where a number is not finite.
  std::optional<std::vector<float>> finish();

 private:
  std::vector<float> numbers_;
  int32_t text_size_ = 0, positions_ = 0;
  Pooling::Kind kind_ = Pooling::Kind::mean;
};

// The vector behind the modules of the pooling; nothing where a number is not finite.
std::optional<std::vector<float>> behind_modules(std::vector<float> vector, const Pooling& pooling);

// dot(a, b) / sqrt(dot(a, a) * dot(b, b)), each dot portable in f32 (numerics 1); 0 where one has
// no length. Both have as many numbers.
float cosine(std::span<const float> a, std::span<const float> b);

// The vector as it is shown: its first `size` numbers, where that is said; then with `normalize`
// each divided by sqrt(sum64 of their squares), a vector of zeros as it is. Throws UsageError where
// it has fewer.
std::vector<float> shown_vector(std::vector<float> vector, std::optional<int32_t> size,
                                bool normalize);

}  // namespace invar
