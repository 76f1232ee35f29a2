// Where the blocks of a matrix lie: plain data, for a CPU's and a GPU's code.
#pragma once

#include "kernels/matrix.h"
#include "numerics/blocks.h"

namespace invar {

class BlockPlaces {
 public:
  explicit BlockPlaces(const Matrix& w)
      : storage_(storage_of(w.type)),
        outputs_(w.unit_outputs()),
        unit_bytes_(w.unit_bytes()),
        scales_at_(w.scales_at()),
        row_blocks_(w.row_blocks()) {}

  constexpr int block() const { return storage_.block; }
  constexpr int64_t row_blocks() const { return row_blocks_; }

  // The elements of a block of an output, as they are multiplied. Outputs count through the units
  // of a stack: the 16 of unit 0, those of unit 1, ...
  constexpr void read(const void* data, int64_t output, int64_t block, bf16_t* out) const {
    uint8_t values[kMaxBlockBytes] = {}, scales[kMaxBlockBytes] = {};
    read_stored(data, output, block, scales, values);
    float elements[kMaxBlock] = {};
    expand_block(storage_, values, scales, elements);
    for (int i = 0; i < storage_.block; ++i) out[i] = f32_to_bf16(elements[i]);
  }

  // Its bytes.
  constexpr void read_stored(const void* data, int64_t output, int64_t block, uint8_t* scales,
                             uint8_t* values) const {
    const auto* unit = static_cast<const uint8_t*>(data) + output / outputs_ * unit_bytes_;
    for_each_byte(output % outputs_, block, scales, values,
                  [&](int64_t at, uint8_t& byte) { byte = unit[at]; });
  }

  // Puts a block, as files have it, to its place.
  void write(void* data, int64_t output, int64_t block, const uint8_t* stored) const {
    auto* unit = static_cast<uint8_t*>(data) + output / outputs_ * unit_bytes_;
    for_each_byte(output % outputs_, block, stored, stored + storage_.scale_bytes,
                  [&](int64_t at, const uint8_t& byte) { unit[at] = byte; });
  }

 private:
  // use(offset in the unit, byte) for the scales and the values of a block.
  template <typename Byte, typename Use>
  constexpr void for_each_byte(int64_t lane, int64_t block, Byte* scales, Byte* values,
                               Use use) const {
    const auto& s = storage_;
    const int64_t first = block * s.value_bytes * outputs_;
    in_turn(scales_at_ + block * s.scale_bytes * outputs_, lane, s.scale_bytes, s.scales_together(),
            false, scales, use);
    in_turn(first, lane, s.lead, s.lead, false, values, use);
    in_turn(first + s.lead * outputs_, lane, s.value_bytes - s.lead, s.together, outputs_ > 1,
            values + s.lead, use);
  }

  // Calls `use` for each output, `together` of its `count` bytes at a time, perhaps the even ones
  // first.
  template <typename Byte, typename Use>
  constexpr void in_turn(int64_t at, int64_t lane, int count, int together, bool evens_first,
                         Byte* bytes, Use use) const {
    at += lane * together;
    for (int i = 0; i < count; i += together, at += outputs_ * together)
      for (int j = 0; j < together; ++j)
        use(at + (evens_first ? j % 2 * together / 2 + j / 2 : j), bytes[i + j]);
  }

  StorageType storage_;
  int64_t outputs_, unit_bytes_, scales_at_, row_blocks_;
};

}  // namespace invar
