// Those of recurrent_carry.cu's roles that make values, each warp those of a stretch.
#pragma once

#include "kernels/cuda/recurrent_carrier.cuh"

namespace invar::cuda::carry {

// Makes values of the delta rule.
class Solver : Carrier {
 public:
  using Carrier::Carrier;

  __device__ void begin(const Piece& piece, const PieceWeights& w) {
    load_rows_of(piece, w);
    load_weights_of(piece, w);
  }

  // Makes the values of `piece`, of which everything is loaded; loads what `next` needs, if that is
  // there.
  __device__ void solve(const Piece& piece, const Piece& next, const PieceWeights* next_w) {
    Tile rest, dots = {};
    meet_state(keys_, rest);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 v = v_[k / 2][n];
        rest[n][k] = __fmaf_rn(-decays_[k / 2], rest[n][k], k % 2 ? v.y : v.x);
      }
    // The first stretch is waited for; the others have time.
    if (next_w && stretch_ > 0) load_rows_of(next, *next_w);
    const int stretches = (piece.seen + kStretchSlots - 1) / kStretchSlots;
#pragma unroll
    for (int s = 0; s < kStretches - 1; ++s) {
      if (s == stretch_ || s >= stretches) break;
      __syncthreads();
      add_values(of_keys_[s], s, dots);
    }
    if (stretch_ < stretches) {
      const bool has_rows = (stretch_ + 1) * kStretchSlots > piece.slot;
      if (has_rows) make_values(piece, rest, dots);
      __syncthreads();
      if (has_rows) leave_values(piece);
    }
    if (next_w && stretch_ == 0) load_rows_of(next, *next_w);
    if (next_w) load_weights_of(next, *next_w);
    for (int s = stretch_ + 1; s < stretches; ++s) __syncthreads();
  }

 private:
  // Loads for the part of values that comes from the state.
  __device__ void load_rows_of(const Piece& piece, const PieceWeights& w) {
    load_rows(p_.k, piece, keys_);
    load_inputs(piece, v_);
    decays_[0] = w.decay[slot_of(0)], decays_[1] = w.decay[slot_of(1)];
  }
  // Loads for the part that comes from the chunk.
  __device__ void load_weights_of(const Piece& piece, const PieceWeights& w) {
#pragma unroll
    for (int s = 0; s < kStretches - 1; ++s)
      if (s < stretch_) of_keys_[s] = w.of_keys[PieceWeights::key_block(stretch_, s)][lane_];
    const float4* from = reinterpret_cast<const float4*>(w.own[stretch_]);
    own_[0] = from[lane_], own_[1] = from[kWarp + lane_];
    const int slot = stretch_ * kStretchSlots + lane_ % kStretchSlots;
    factor_ = factor_of(piece, slot);
    if (!piece.has(slot)) return;
    write_begin_ = p_.places.write_begin[piece.row(slot)];
    write_end_ = p_.places.write_begin[piece.row(slot) + 1];
    to_ = values(p_.places.write_cell[write_begin_]) + value_index(layer_, slot, first_);
  }

  // The values of the warp's stretch to shared memory; a lane has an element of all of them.
  __device__ void make_values(const Piece& piece, const Tile& rest, const Tile& dots) {
    float4* own = reinterpret_cast<float4*>(shared_.own[stretch_]);
    own[lane_] = own_[0], own[kWarp + lane_] = own_[1];
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *reinterpret_cast<float2*>(shared_.rest + (2 * i_ + r) * kRestStride + 8 * n + 2 * j_) = {
            rest[n][2 * r] - (dots[n][2 * r] + 0.0f),
            rest[n][2 * r + 1] - (dots[n][2 * r + 1] + 0.0f)};
    __syncwarp();
    // A row's factor stands where its weight of itself would.
    if (lane_ < kStretchSlots) shared_.own[stretch_][lane_ * (kStretchSlots + 1)] = factor_;
    __syncwarp();
    const int given = piece.slot - stretch_ * kStretchSlots;  // that are there already
    non_finite_ = 0;
    if (given > 0 || !substitute()) substitute_clamped(given);
  }

  // Row by row, each from those before it. False where a value is not finite, or becomes so.
  __device__ bool substitute() const {
    const float4* own = reinterpret_cast<const float4*>(shared_.own[stretch_]);
    float r[kStretchSlots], w[2][kStretchSlots];
    const auto load_weights = [&](int m) {
#pragma unroll
      for (int four = m / 4; four < kStretchSlots / 4; ++four) {
        const float4 x = own[m * kStretchSlots / 4 + four];
        float* to = w[m % 2] + 4 * four;
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
      }
    };
    load_weights(0);
#pragma unroll
    for (int m = 0; m < kStretchSlots; ++m) r[m] = shared_.rest[m * kRestStride + lane_];
    uint32_t u[kStretchSlots / 2];
    float most = 0.0f;
#pragma unroll
    for (int m = 0; m < kStretchSlots; ++m) {
      if (m + 1 < kStretchSlots) load_weights(m + 1);
      const float x = w[m % 2][m] * r[m];
      // NaN is what fmaxf passes over, but its bits are the largest.
      most = __uint_as_float(max(__float_as_uint(most), __float_as_uint(fabsf(x))));
      const uint32_t bits = pack_bf16(0.0f, x);
      const float y = __uint_as_float(bits);
      u[m / 2] = m % 2 ? u[m / 2] | bits : bits >> 16;
#pragma unroll
      for (int later = m + 1; later < kStretchSlots; ++later)
        r[later] = __fmaf_rn(-w[m % 2][later], y, r[later]);
    }
    if (!__all_sync(kAllLanes, most < 0x1p127f)) return false;
    uint4* to = reinterpret_cast<uint4*>(shared_.u + lane_ * kUStride + stretch_ * kStretchSlots);
    to[0] = {u[0], u[1], u[2], u[3]}, to[1] = {u[4], u[5], u[6], u[7]};
    return true;
  }
  // The same where rows are there already, or values are clamped, in shared memory: it is rare.
  __device__ void substitute_clamped(int given) {
    float* r = shared_.rest + lane_;
    bf16_t* to = shared_.u + lane_ * kUStride + stretch_ * kStretchSlots;
#pragma unroll 1
    for (int m = 0; m < kStretchSlots; ++m) {
      const float* own = shared_.own[stretch_] + m * kStretchSlots;
      if (m >= given) {
        const float x = own[m] * r[m * kRestStride];
        if (!isfinite(x)) non_finite_ |= 1u << m;
        to[m] = f32_to_cached_bf16(x);
      }
#pragma unroll 1
      for (int later = m + 1; later < kStretchSlots; ++later)
        r[later * kRestStride] = __fmaf_rn(-own[later], bf16_to_f32(to[m]), r[later * kRestStride]);
    }
  }

  // The values to the cells of their rows.
  __device__ void leave_values(const Piece& piece) const {
    const uint4* from =
        reinterpret_cast<const uint4*>(shared_.u + lane_ * kUStride + stretch_ * kStretchSlots);
    const uint4 low = from[0], high = from[1];
    const uint32_t u[] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const auto address = reinterpret_cast<uint64_t>(to_);
#pragma unroll
    for (int m = 0; m < kStretchSlots; ++m) {
      bf16_t* to = reinterpret_cast<bf16_t*>(__shfl_sync(kAllLanes, address, m));
      if (piece.has(stretch_ * kStretchSlots + m))
        to[lane_] = static_cast<bf16_t>(m % 2 ? u[m / 2] >> 16 : u[m / 2]);
    }
    const bool is_mine = lane_ < kStretchSlots && piece.has(stretch_ * kStretchSlots + lane_);
    if (__any_sync(kAllLanes, non_finite_ != 0 || (is_mine && write_end_ > write_begin_ + 1)))
      leave_rare(piece);
  }
  // Few pieces have rows of several cells, or flags.
  __device__ void leave_rare(const Piece& piece) const {
    const bf16_t* u = shared_.u + lane_ * kUStride + stretch_ * kStretchSlots;
#pragma unroll 1
    for (int m = 0; m < kStretchSlots; ++m) {
      const int slot = stretch_ * kStretchSlots + m;
      const int begin = __shfl_sync(kAllLanes, write_begin_, m);
      const int end = __shfl_sync(kAllLanes, write_end_, m);
      if (!piece.has(slot)) continue;
      if (non_finite_ >> m & 1) p_.non_finite[piece.row(slot)] = true;
#pragma unroll 1
      for (int w = begin + 1; w < end; ++w)
        values(p_.places.write_cell[w])[value_index(layer_, slot, first_ + lane_)] = u[m];
    }
  }

  StepOutputs keys_[kSteps];
  Fragment of_keys_[kStretches - 1];
  float2 v_[2][kTiles];
  float4 own_[2];
  float factor_, decays_[2];
  // Where the values of the lane's row go: first to to_, then to what else is in the list.
  int32_t write_begin_ = 0, write_end_ = 0;
  bf16_t* to_ = nullptr;
  uint32_t non_finite_ = 0;  // a bit for each row of the stretch
};

// Makes values of a state space, which depend on nothing but their rows.
class Scaler : Carrier {
 public:
  using Carrier::Carrier;

  __device__ void begin(const Piece&, const PieceWeights&) {}
  __device__ void solve(const Piece& piece, const Piece&, const PieceWeights*) {
    float2 v[2][kTiles];
    load_inputs(piece, v);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (piece.has(slot_of(r))) leave_row(piece.row(slot_of(r)), slot_of(r), v[r]);
    for (int s = 0; s * kStretchSlots < piece.seen; ++s) __syncthreads();
  }

 private:
  __device__ void leave_row(int64_t t, int slot, const float2 (&v)[kTiles]) const {
    const float factor = p_.factors[t * layer_.heads + head_];
    const int begin = p_.places.write_begin[t], end = p_.places.write_begin[t + 1];
    bf16_t* first = values(p_.places.write_cell[begin]);  // a row has at least one cell
    bool is_finite = true;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float x = factor * (c ? v[n].y : v[n].x);
        is_finite = is_finite && isfinite(x);
        const int e = 8 * n + 2 * j_ + c;
        const int to = value_index(layer_, slot, first_ + e);
        const bf16_t value = f32_to_cached_bf16(x);
        shared_.u[e * kUStride + slot] = value;
        first[to] = value;
#pragma unroll 1
        for (int w = begin + 1; w < end; ++w) values(p_.places.write_cell[w])[to] = value;
      }
    if (!is_finite) p_.non_finite[t] = true;
  }
};

}  // namespace invar::cuda::carry
