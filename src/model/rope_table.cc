#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <tuple>

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
  const bool has_blend = rope.low_freq_factor < rope.high_freq_factor;
  if (!has_blend || wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * (frequency / rope.factor) + smooth * frequency;
}

// YaRN: frequencies that turn rarely within the first training stage are divided by `factor`, those
// that turn often kept, those between blended along a ramp over their numbers.
struct YarnRamp {
  YarnRamp(const RopeSpec& rope, int rotated) {
    const auto number_of = [&](double turns) {
      return rotated * math::log(rope.original_positions / (turns * kTwoPi)) /
             (2.0 * math::log(rope.theta));
    };
    low = number_of(rope.beta_fast);
    high = number_of(rope.beta_slow);
    if (rope.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    high = std::min(high, rotated - 1.0);
    if (low == high) high = high + 0.001;
  }
  double blend(int i, double frequency, double factor) const {
    const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    return ramp * (frequency / factor) + (1.0 - ramp) * frequency;
  }
  double low, high;
};

}  // namespace

std::vector<double> rotary_frequencies(const std::optional<RopeSpec>& spec, int head_dim) {
  std::vector<double> frequencies(head_dim / 2);
  if (!spec) return frequencies;
  const RopeSpec& rope = *spec;
  using enum RopeSpec::Scaling;
  const int rotated = rope.rotated ? rope.rotated : head_dim;
  const std::vector<double>& factors = rope.is_long ? rope.long_factors : rope.short_factors;
  std::optional<YarnRamp> ramp;
  if (rope.scaling == yarn) ramp.emplace(rope, rotated);
  for (int i = 0; i < rotated / 2; ++i) {
    const double exponent = -(2.0 * i) / (rope.spans_head ? head_dim : rotated);
    double frequency = math::pow(rope.theta, exponent);
    if (rope.scaling == linear) frequency = frequency / rope.factor;
    if (rope.scaling == llama3) frequency = llama3_frequency(rope, frequency);
    if (rope.scaling == yarn) frequency = ramp->blend(i, frequency, rope.factor);
    if (rope.scaling == longrope) frequency = frequency / factors[static_cast<size_t>(i)];
    frequencies[i] = frequency;
  }
  return frequencies;
}

RopeTable::RopeTable(Device& device, const std::optional<RopeSpec>& rope, int head_dim,
                     int max_positions)
    : frequencies_(rotary_frequencies(rope, head_dim)),
      factor_(rope ? rope->attention_factor : 1.0),
      max_positions_(max_positions),
      cos_(device, size_t{frequencies_.size()} * max_positions, "the rotary table"),
      sin_(device, size_t{frequencies_.size()} * max_positions, "the rotary table") {
  if (device.is_host()) return;
  host_cos_ = {device, cos_.size(), "the rotary table"};
  host_sin_ = {device, sin_.size(), "the rotary table"};
}

double RopeTable::growth_at(int position) const {
  if (growth_.scale == 0) return 1.0;
  return 1.0 + growth_.scale * math::log(1.0 + std::floor((position + 1.0) / growth_.step));
}

RopeTable::RopeTable(Device& device, const GrowthSpec& growth, int head_dim, int max_positions)
    : RopeTable(device, std::nullopt, head_dim, max_positions) {
  growth_ = growth;
}

void RopeTable::fill(int count, const Execution& on) {
  CHECK(count <= max_positions_, "a position beyond the model's last");
  if (count <= filled_) return;
  const bool is_host = host_cos_.size() == 0;
  const int64_t half = std::ssize(frequencies_), begin = filled_ * half;
  float* cos = is_host ? cos_.data() : host_cos_.data();
  float* sin = is_host ? sin_.data() : host_sin_.data();
  const int end = std::min(max_positions_, (count + kBlock - 1) / kBlock * kBlock);
  for (int p = filled_; p < end; ++p) {
    const double still = growth_at(p);
    for (int64_t i = 0; i < half; ++i) {
      const auto [s, c] = math::sincos(p * frequencies_[i]);
      const double factor = frequencies_[i] > 0 ? factor_ : still;
      cos[p * half + i] = static_cast<float>(c * factor);
      sin[p * half + i] = static_cast<float>(s * factor);
    }
  }
  filled_ = end;
  if (is_host) return;
  const size_t bytes = static_cast<size_t>(end * half - begin) * sizeof(float);
  on.stream->upload(cos_.data() + begin, cos + begin, bytes);
  on.stream->upload(sin_.data() + begin, sin + begin, bytes);
}

RopeTables::RopeTables(Device& device, const DecoderSpec& spec) {
  using Key = std::tuple<std::optional<RopeSpec>, std::optional<GrowthSpec>, int>;
  std::vector<Key> known;
  const auto table_of = [&](const Key& key) {
    const auto found = std::ranges::find(known, key);
    const size_t number = static_cast<size_t>(found - known.begin());
    if (found != known.end()) return number;
    known.push_back(key);
    const auto& [rope, growth, head_dim] = key;
    if (growth)
      tables_.emplace_back(device, *growth, head_dim, spec.max_positions);
    else
      tables_.emplace_back(device, rope, head_dim, spec.max_positions);
    return number;
  };
  for (int layer = 0; layer < spec.all_layers(); ++layer) {
    const LayerSpec parts = spec.layer(layer);
    const AttentionSpec* attention = parts.attention();  // without one nobody asks for its table
    const int head_dim = attention ? spec.head_dim_of(*attention) : spec.head_dim;
    table_of_.push_back(attention ? table_of({attention->rope, {}, head_dim}) : 0);
    const IndexerSpec* indexer = parts.indexer();
    index_of_.push_back(indexer ? table_of({attention->rope, {}, indexer->size}) : 0);
    growth_of_.push_back(
        attention && attention->growth ? table_of({{}, attention->growth, head_dim}) : 0);
    if (spec.late_qk_norm || (attention && attention->has_unit_heads))
      still_ = table_of({{}, {}, head_dim});
  }
}

}  // namespace invar
