#include "engine/pooled_vector.h"

#include <cmath>

#include "base/error.h"
#include "base/thread_pool.h"
#include "numerics/math.h"
#include "numerics/orders.h"

namespace invar {

void PooledVector::take(std::span<const float> hidden) {
  const bool counts = kind_ == Pooling::Kind::mean ||
                      positions_ == (kind_ == Pooling::Kind::first ? 0 : text_size_ - 1);
  for (size_t i = 0; counts && i < numbers_.size(); ++i) numbers_[i] += hidden[i];
  ++positions_;
}

std::optional<std::vector<float>> PooledVector::finish() {
  for (float& number : numbers_) {
    if (kind_ == Pooling::Kind::mean) number /= static_cast<float>(text_size_);
    if (!std::isfinite(number)) return std::nullopt;
  }
  return std::move(numbers_);
}

std::vector<float> shown_vector(std::vector<float> vector, std::optional<int32_t> size,
                                bool normalize) {
  if (size && *size > std::ssize(vector))
    fail_usage("expected dimensions of at most {}, found {}", vector.size(), *size);
  if (size) vector.resize(static_cast<size_t>(*size));
  if (!normalize) return vector;
  const ScopedFlushToZero flush;
  const float length = math::sqrt(orders::sum64_squares(vector));
  for (float& number : vector) number = length > 0 ? number / length : number;
  return vector;
}

}  // namespace invar
