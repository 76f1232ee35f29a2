// How tiles of row-parallel products of many rows end (numerics 2), by the copy engine.
#pragma once

#include "kernels/cuda/product_hopper.cuh"

namespace invar::cuda {

// The outputs, in boxes of 64 rows and 128 bytes; of no use where BoxedEnd cannot write them.
inline CUtensorMap boxes_of(const PlainEnd& end, int64_t rows) {
  if (!end.in_boxes || rows < kTileRows) return {};
  return tensor_map<2>(end.y,
                       {.sizes = {static_cast<uint64_t>(end.n), static_cast<uint64_t>(rows)},
                        .strides = {static_cast<uint64_t>(end.stride) * sizeof(float)},
                        .box = {32, 64}},
                       true, DType::f32);
}

// Ends a tile's halves by way of shared memory: the copy engine writes them, or adds them to the
// residual stream, while the next tile is multiplied. A warpgroup's room holds 64 rows of kColumns
// f32, in boxes of 32 columns; the warpgroup's sums of parts lie there, too.
template <int kColumns>
class BoxedEnd {
 public:
  static constexpr int kBoxColumns = 32, kBoxBytes = 64 * kBoxColumns * 4,
                       kBytes = kColumns / kBoxColumns * kBoxBytes;

  __device__ BoxedEnd(const CUtensorMap& map, uint32_t room, int half, const PlainEnd& end)
      : map_(map), room_(room), name_(1 + half), thread_(threadIdx.x % 128), end_(end) {}

  // Whether a tile of these rows can be written so: all of them are its own.
  __device__ bool can(int64_t first_row, int64_t rows) const {
    return end_.in_boxes && first_row + kTileRows <= rows;
  }

  // By the warpgroup, before it writes to its room: what was there has been read.
  __device__ __forceinline__ void wait_for_room() const {
    if (thread_ == 0) boxes_are_read();
    named_sync(name_, 128);
  }

  // The finished dots of the rows from `row` on, and of the columns from `column` on.
  __device__ __forceinline__ void write(const float (&d)[kColumns / 2], int row, int column) const {
    const int lane = thread_ % kWarp, in_box = thread_ / kWarp * 16 + lane / 4;
    wait_for_room();
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int chunk = (j % 4 * 2 + lane % 4 / 2) ^ (in_box % 8);
      const uint32_t to = room_ + j / 4 * kBoxBytes + in_box * 128 + chunk * 16 + lane % 2 * 8;
      const int output = column + j * 8 + lane % 4 * 2;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        store_shared(to + r * 8 * 128, end_.value(output, d[4 * j + 2 * r]),
                     end_.value(output + 1, d[4 * j + 2 * r + 1]));
    }
    stores_are_seen();
    named_sync(name_, 128);
    if (thread_ != 0) return;
#pragma unroll
    for (int box = 0; box < kColumns / kBoxColumns; ++box) {
      const uint32_t from = room_ + box * kBoxBytes;
      const int first = column + box * kBoxColumns;
      end_.accumulate ? add_box(map_, first, row, from) : store_box(map_, first, row, from);
    }
    boxes_commit();
  }

  __device__ void end() const {
    if (thread_ == 0) boxes_are_written();
  }

 private:
  const CUtensorMap& map_;
  const uint32_t room_;
  const int name_, thread_;
  const PlainEnd& end_;
};

}  // namespace invar::cuda
