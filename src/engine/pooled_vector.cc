#include "engine/pooled_vector.h"

#include <algorithm>
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

std::optional<std::vector<float>> behind_modules(std::vector<float> vector,
                                                 const Pooling& pooling) {
  const ScopedFlushToZero flush;
  for (const DenseModule& module : pooling.dense) vector = module.apply(vector);
  const bool is_finite =
      std::ranges::all_of(vector, [](float number) { return std::isfinite(number); });
  return is_finite ? std::optional(std::move(vector)) : std::nullopt;
}

float cosine(std::span<const float> a, std::span<const float> b) {
  const ScopedFlushToZero flush;
  const auto dot = [](std::span<const float> x, std::span<const float> y) {
    return orders::dot(x.data(), y.data(), std::ssize(x));
  };
  const float lengths = math::sqrt(dot(a, a) * dot(b, b));
  return lengths > 0 ? dot(a, b) / lengths : 0.0f;
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
