// Random weights without a file: every element is a pure function of (seed, tensor name, index), so
// that any part can be made by any thread, and a file written from it holds the same bits.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weights/source_bases.h"

namespace invar {

struct DummyTensor {
  std::string name;
  std::vector<int64_t> shape;
  double mean = 0, deviation = 1;
};

// FNV-1a, 64 bits: the part of the counter that tells tensors apart.
uint64_t hash_of_name(std::string_view name);

// The definition. Philox4x32-10 with key = seed and counter = {low, high half of index / 4, low,
// high half of the name's hash}; s = the sum of the 4 bytes of output number index % 4, of mean 510
// and variance 21845; the element is bf16(mean + (s - 510) * scale) in f32, two operations, where
// scale = deviation / sqrt(21845).
bf16_t dummy_element(uint64_t seed, uint64_t name_hash, int64_t index, float mean, float scale);

struct DummyEntry {
  TensorInfo info;  // bf16
  uint64_t hash = 0;
  float mean = 0, scale = 0;
};

class DummySource : public ListedTensors<DummyEntry> {
 public:
  // Deviations are 0 or at least 1e-20.
  DummySource(const std::vector<DummyTensor>& tensors, uint64_t seed);

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override;
  std::string where(std::string_view name) const override;

 private:
  uint64_t seed_;
};

}  // namespace invar
