// Cosines and sines of the rotary angles: pure functions of (position, i), filled as positions are
// met (numerics 5).
#pragma once

#include <vector>

#include "device/execution.h"
#include "model/decoder_spec.h"

namespace invar {

// Angle per position of pair i = 0 .. E/2 - 1, in f64, scaling applied; 0 without rotation.
std::vector<double> rotary_frequencies(const std::optional<RopeSpec>& rope, int head_dim);

class RopeTable {
 public:
  RopeTable(Device& device, const std::optional<RopeSpec>& rope, int head_dim, int max_positions);
  // For elements that grow and do not turn: cosines are their factors, sines are 0.
  RopeTable(Device& device, const GrowthSpec& growth, int head_dim, int max_positions);

  // Makes positions [0, count) available to what follows in the stream; count <= max_positions.
  void fill(int count, const Execution& on);

  const float* cos() const { return cos_.data(); }  // [position][E/2]
  const float* sin() const { return sin_.data(); }

 private:
  // The factor of elements that do not turn: 1 where nothing grows.
  double growth_at(int position) const;

  std::vector<double> frequencies_;
  double factor_;  // of cosines and sines
  GrowthSpec growth_;
  int filled_ = 0, max_positions_;
  DeviceArray<float> cos_, sin_;
  // The device's arrays are copied from these, whenever that is; none on a host. Elements never
  // change once they are there.
  PinnedArray<float> host_cos_, host_sin_;
};

// The tables of a decoder's layers: one for each rotation that they have.
class RopeTables {
 public:
  RopeTables(Device& device, const DecoderSpec& spec);

  void fill(int count, const Execution& on) {
    for (RopeTable& table : tables_) table.fill(count, on);
  }
  // The table of positions that do not turn anything.
  const RopeTable& still() const { return tables_[still_]; }
  const RopeTable& of(int layer) const { return tables_[table_of_[static_cast<size_t>(layer)]]; }
  // The table of the layer's indexer.
  const RopeTable& index_of(int layer) const {
    return tables_[index_of_[static_cast<size_t>(layer)]];
  }
  const RopeTable& growth_of(int layer) const {
    return tables_[growth_of_[static_cast<size_t>(layer)]];
  }

 private:
  std::vector<RopeTable> tables_;
  std::vector<size_t> table_of_;   // by layer
  std::vector<size_t> index_of_;   // by layer, where there are indexers
  std::vector<size_t> growth_of_;  // by layer, where queries grow
  size_t still_ = 0;               // where there is one
};

}  // namespace invar
