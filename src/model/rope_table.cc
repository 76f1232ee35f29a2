#include "model/rope_table.h"

#include <algorithm>

#include "base/check.h"
#include "numerics/math.h"

namespace invar {

namespace {

constexpr double kTwoPi = 0x1.921fb54442d18p+2;
constexpr int kBlock = 128;  // positions are filled in whole blocks

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

std::vector<double> rotary_frequencies(const std::optional<RopeSpec>& spec, int head_dim) {
  std::vector<double> frequencies(head_dim / 2);
  if (!spec) return frequencies;
  const RopeSpec& rope = *spec;
  for (int i = 0; i < head_dim / 2; ++i) {
    const double exponent = -(2.0 * i) / head_dim;
    double frequency = math::pow(rope.theta, exponent);
    if (rope.scaling == RopeSpec::Scaling::linear) frequency = frequency / rope.factor;
    if (rope.scaling == RopeSpec::Scaling::llama3) frequency = llama3_frequency(rope, frequency);
    frequencies[i] = frequency;
  }
  return frequencies;
}

RopeTable::RopeTable(Device& device, const std::optional<RopeSpec>& rope, int head_dim,
                     int max_positions)
    : frequencies_(rotary_frequencies(rope, head_dim)),
      max_positions_(max_positions),
      cos_(device, size_t{frequencies_.size()} * max_positions, "the rotary table"),
      sin_(device, size_t{frequencies_.size()} * max_positions, "the rotary table") {
  if (device.is_host()) return;
  host_cos_ = {device, cos_.size(), "the rotary table"};
  host_sin_ = {device, sin_.size(), "the rotary table"};
}

void RopeTable::fill(int count, const Execution& on) {
  CHECK(count <= max_positions_, "a position beyond the model's last");
  if (count <= filled_) return;
  const bool is_host = host_cos_.size() == 0;
  const int64_t half = std::ssize(frequencies_), begin = filled_ * half;
  float* cos = is_host ? cos_.data() : host_cos_.data();
  float* sin = is_host ? sin_.data() : host_sin_.data();
  const int end = std::min(max_positions_, (count + kBlock - 1) / kBlock * kBlock);
  for (int p = filled_; p < end; ++p)
    for (int64_t i = 0; i < half; ++i) {
      const auto [s, c] = math::sincos(p * frequencies_[i]);
      cos[p * half + i] = static_cast<float>(c);
      sin[p * half + i] = static_cast<float>(s);
    }
  filled_ = end;
  if (is_host) return;
  const size_t bytes = static_cast<size_t>(end * half - begin) * sizeof(float);
  on.stream->upload(cos_.data() + begin, cos + begin, bytes);
  on.stream->upload(sin_.data() + begin, sin + begin, bytes);
}

RopeTables::RopeTables(Device& device, const DecoderSpec& spec) {
  std::vector<std::optional<RopeSpec>> known;
  for (int layer = 0; layer < spec.all_layers(); ++layer) {
    const std::optional<RopeSpec> rope = spec.layer(layer).attention.rope;
    const auto found = std::ranges::find(known, rope);
    table_of_.push_back(static_cast<size_t>(found - known.begin()));
    if (found != known.end()) continue;
    known.push_back(rope);
    tables_.emplace_back(device, rope, spec.head_dim, spec.max_positions);
  }
}

}  // namespace invar
