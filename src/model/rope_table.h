// Cosines and sines of the rotary angles: pure functions of (position, i), filled as positions are
// met (numerics 5).
#pragma once

#include <vector>

#include "device/device.h"
#include "model/decoder_spec.h"

namespace invar {

// Angle per position of pair i = 0 .. E/2 - 1, in f64, scaling applied.
std::vector<double> rotary_frequencies(const RopeSpec& rope, int head_dim);

class RopeTable {
 public:
  RopeTable(Device& device, const RopeSpec& rope, int head_dim, int max_positions);

  // Makes positions [0, count) available; count <= max_positions.
  void fill(int count);

  const float* cos() const { return cos_.data(); }  // [position][E/2]
  const float* sin() const { return sin_.data(); }

 private:
  Device* device_;
  std::vector<double> frequencies_;
  int filled_ = 0, max_positions_;
  DeviceArray<float> cos_, sin_;
  std::vector<float> staging_;
};

}  // namespace invar
