// The roles of recurrent_carry.cu share this: a block's shared memory, the rows and elements of a
// lane, and the products with the state and with values.
#pragma once

#include "kernels/cuda/recurrent_pieces.cuh"
#include "kernels/cuda/recurrent_products.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda::carry {

constexpr int kRole = kStretches * kWarp;  // threads of a role
constexpr int kCarryThreads = 2 * kRole;
constexpr int kStateIsThere = 1, kKeepersSee = 2;  // barriers; 0 is that of values of a stretch
constexpr int kSteps = kKeySteps, kTiles = kPieceValues / 8;
// Elements from row to row of shared memory, so that lanes read different banks.
constexpr int kOperandStride = kPieceKey + 16, kUStride = kChunkSlots + 8,
              kRestStride = kPieceValues + 4;

struct Shared {
  alignas(16) bf16_t operand[kPieceValues * kOperandStride];  // the state, [e][d]
  alignas(16) bf16_t u[kPieceValues * kUStride];              // values of the chunk, [e][slot]
  alignas(
      16) float rest[kStretchSlots * kRestStride];  // [row][e]: values without their own stretch
  alignas(16) float own[kStretches][kStretchSlots * kStretchSlots];
};

// 16 rows by 32 elements: tile n has elements 8 n ... of its lane's two rows.
using Tile = float[kTiles][4];

__device__ __forceinline__ StepOutputs outputs_of(const Fragment& x) {
  return {{x.x, x.y, x.z, x.w}};
}

class Carrier {
 public:
  __device__ Carrier(const RecurrenceParams& p, Shared& shared, int head, int first)
      : p_(p),
        layer_(p.layer),
        shared_(shared),
        head_(head),
        key_head_(head / (p.layer.heads / p.layer.key_heads)),
        first_(first),
        lane_(threadIdx.x % kWarp),
        stretch_(threadIdx.x % kRole / kWarp),
        i_(lane_ / 4),
        j_(lane_ % 4) {}

 protected:
  __device__ bf16_t* values(int32_t cell) const {
    return layer_.values.template at<bf16_t>(cell) + head_ * layer_.value_elements();
  }
  // The slot of one of the lane's two rows.
  __device__ int slot_of(int r) const { return stretch_ * kStretchSlots + 2 * i_ + r; }

  // Queries or keys of the lane's two rows.
  __device__ void load_rows(const void* rows, const Piece& piece, StepOutputs (&x)[kSteps]) const {
    cuda::load_rows(layer_, rows, key_head_, piece, slot_of(0), x);
  }
  __device__ void load_inputs(const Piece& piece, float2 (&v)[2][kTiles]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool is_there = piece.has(slot_of(r));
      const float* row =
          p_.v + piece.row(slot_of(r)) * p_.v_stride + head_ * layer_.value_size + first_ + 2 * j_;
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        v[r][n] = is_there ? *reinterpret_cast<const float2*>(row + 8 * n) : float2{};
    }
  }
  __device__ float factor_of(const Piece& piece, int slot) const {
    return piece.has(slot) ? p_.factors[piece.row(slot) * layer_.heads + head_] : 0.0f;
  }

  // Rows by the state.
  __device__ void meet_state(const StepOutputs (&x)[kSteps], Tile& y) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int k = 0; k < 4; ++k) y[n][k] = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const bf16_t* row = shared_.operand + (8 * n + i_) * kOperandStride;
        step(y[n], x[s], load_row(reinterpret_cast<const uint32_t*>(row), s, lane_));
      }
  }
  // One step over the values of a stretch.
  __device__ void add_values(const Fragment& x, int stretch, Tile& y) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) step(y[n], outputs_of(x), load_values(stretch, n));
  }
  __device__ StepRows load_values(int stretch, int tile) const {
    const uint32_t* row =
        reinterpret_cast<const uint32_t*>(shared_.u + (8 * tile + i_) * kUStride) + stretch * 8 +
        j_;
    return {{row[0], row[4]}};
  }

  const RecurrenceParams& p_;
  const RecurrentLayer& layer_;
  Shared& shared_;
  const int head_, key_head_, first_;  // first_: of the elements
  const int lane_, stretch_, i_, j_;
};

}  // namespace invar::cuda::carry
