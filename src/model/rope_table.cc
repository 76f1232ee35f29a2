#include "model/rope_table.h"

#include <algorithm>

#include "base/check.h"
#include "numerics/math.h"

namespace invar {

namespace {

constexpr double kTwoPi = 0x1.921fb54442d18p+2;
constexpr int kBlock = 128;  // positions that one step of filling adds

// Llama 3: long wavelengths are stretched by `factor`, short ones kept, those between blended.
double llama3_frequency(const RopeSpec& rope, double frequency) {
  const double wavelength = kTwoPi / frequency, original = rope.original_positions;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * (frequency / rope.factor) + smooth * frequency;
}

}  // namespace

std::vector<double> rotary_frequencies(const RopeSpec& rope, int head_dim) {
  std::vector<double> frequencies(head_dim / 2);
  for (int i = 0; i < head_dim / 2; ++i) {
    const double exponent = -(2.0 * i) / head_dim;
    double frequency = math::pow(rope.theta, exponent);
    if (rope.scaling == RopeSpec::Scaling::linear) frequency = frequency / rope.factor;
    if (rope.scaling == RopeSpec::Scaling::llama3) frequency = llama3_frequency(rope, frequency);
    frequencies[i] = frequency;
  }
  return frequencies;
}

RopeTable::RopeTable(Device& device, const RopeSpec& rope, int head_dim, int max_positions)
    : device_(&device),
      frequencies_(rotary_frequencies(rope, head_dim)),
      max_positions_(max_positions),
      cos_(device, size_t{frequencies_.size()} * max_positions, "the rotary table"),
      sin_(device, size_t{frequencies_.size()} * max_positions, "the rotary table"),
      staging_(2 * kBlock * frequencies_.size()) {}

void RopeTable::fill(int count) {
  CHECK(count <= max_positions_, "a position beyond the model's last");
  const size_t half = frequencies_.size();
  while (filled_ < count) {
    const int positions = std::min(kBlock, max_positions_ - filled_);
    float* cos = staging_.data();
    float* sin = cos + positions * half;
    for (int p = 0; p < positions; ++p)
      for (size_t i = 0; i < half; ++i) {
        const auto [s, c] = math::sincos((filled_ + p) * frequencies_[i]);
        cos[p * half + i] = static_cast<float>(c);
        sin[p * half + i] = static_cast<float>(s);
      }
    const size_t bytes = positions * half * sizeof(float);
    device_->upload(cos_.data() + filled_ * half, cos, bytes);
    device_->upload(sin_.data() + filled_ * half, sin, bytes);
    filled_ += positions;
  }
}

}  // namespace invar
