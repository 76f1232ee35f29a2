// The memory of indexers (numerics 4.6): what rows choose, which layers that share an index read
// later, and where the keys and values of chosen slots are gathered, some rows at a time.
#pragma once

#include <vector>

#include "device/device.h"
#include "kernels/layout.h"
#include "model/decoder_spec.h"

namespace invar {

class ChosenSlots {
 public:
  static constexpr int kRows = 16;  // at a time

  ChosenSlots() = default;
  ChosenSlots(Device& device, const DecoderSpec& spec, int max_rows);

  int32_t* of_row(int64_t row) const { return chosen_.data() + row * most_; }
  float* scores() const { return scores_.data(); }  // [kRows][scores_stride]
  int64_t scores_stride() const { return scores_stride_; }

  // Blocks for `most` slots of each of kRows rows, and what attention needs to read them.
  const KvLayer& kv() const { return kv_; }
  const int32_t* positions() const { return positions_.data(); }
  const int32_t* table_of() const { return table_of_.data(); }
  const int32_t* const* tables() const { return tables_.data(); }

  size_t bytes() const;

 private:
  int most_ = 0;
  int64_t scores_stride_ = 0;
  DeviceArray<int32_t> chosen_;  // [T][most]
  DeviceArray<float> scores_;
  DeviceArray<bf16_t> gathered_;
  KvLayer kv_;
  std::vector<int32_t> positions_, table_of_, blocks_;
  std::vector<const int32_t*> tables_;
};

}  // namespace invar
