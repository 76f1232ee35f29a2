// The role of recurrent_carry.cu that has the state and makes outputs.
#pragma once

#include "kernels/cuda/recurrent_carrier.cuh"

namespace invar::cuda::carry {

// Has the state, moves it over boundaries, and makes outputs: its warp has 32 elements of the keys,
// and the rows of a stretch.
class Keeper : Carrier {
 public:
  using Carrier::Carrier;

  __device__ void begin(const Piece& piece, const PieceWeights& w) {
    const int32_t cell = p_.state_of[piece.begin];
#pragma unroll
    for (int a = 0; a < 2; ++a)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float2 two =
              cell < 0 ? float2{} : *reinterpret_cast<const float2*>(states(cell) + at(a, n, c));
          state_[a][n][c] = two.x, state_[a][n][2 + c] = two.y;
        }
    put_operand();
    load_rows(p_.q, piece, queries_);
    load_weights_of(piece, w, 0, loaded_[0]);
  }

  // Ends `piece`, of which everything is loaded; loads what `next` needs, if that is there.
  __device__ void keep(const Piece& piece, const PieceWeights& w, const Piece& next,
                       const PieceWeights* next_w) {
    Tile of_state, dots = {}, moved[2] = {};
    named_sync(kKeepersSee, kRole);
    meet_state(queries_, of_state);
    if (next_w) load_rows(p_.q, next, queries_);
    const Ends ends = ends_of(piece, w, !next_w);
    // A stretch's weights are asked for while the one before is waited for. A piece that is not
    // the last one has all stretches.
#pragma unroll
    for (int s = 0; s < kStretches; ++s) {
      if (s * kStretchSlots >= piece.seen) break;
      Weights& following = loaded_[(s + 1) % 2];
      if (s + 1 < kStretches)
        load_weights_of(piece, w, s + 1, following);
      else if (next_w)
        load_weights_of(next, *next_w, 0, following);
      __syncthreads();
      const Weights& now = loaded_[s % 2];
      if (piece.ends_chunk())
        for (int a = 0; a < 2; ++a) add_values(now.folded[a], s, moved[a]);
      if (s <= stretch_) add_values(now.of_queries, s, dots);
    }
    const bool has_rows =
        (stretch_ + 1) * kStretchSlots > piece.slot && stretch_ * kStretchSlots < piece.seen;
    if (piece.ends_chunk()) {
      move(moved, ends.decay);
      put_operand();
    }
    if (has_rows) write_outputs(piece, ends, of_state, dots);
    if (ends.cell >= 0) write_state(ends.cell);
  }

 private:
  // Values of a stretch are multiplied with these.
  struct Weights {
    Fragment folded[2], of_queries;
  };
  __device__ void load_weights_of(const Piece& piece, const PieceWeights& w, int stretch,
                                  Weights& to) const {
    if (piece.ends_chunk())
      for (int a = 0; a < 2; ++a) to.folded[a] = w.folded[2 * stretch_ + a][stretch][lane_];
    if (stretch <= stretch_)
      to.of_queries = w.of_queries[PieceWeights::query_block(stretch_, stretch)][lane_];
  }
  // The end of a piece needs these, which are loaded early.
  struct Ends {
    float decays[2];  // of the lane's two rows
    float decay;      // of the chunk
    int32_t cell;     // where the next state goes; -1: it stays here
  };
  __device__ Ends ends_of(const Piece& piece, const PieceWeights& w, bool is_last) const {
    Ends ends{{w.decay[slot_of(0)], w.decay[slot_of(1)]}, w.decay[kChunkSlots - 1], -1};
    if (!piece.ends_chunk()) return ends;
    const int64_t last = piece.row(kChunkSlots - 1), next = last + kChunkSlots;
    ends.cell = p_.next_state[last];
    // The next chunk's state goes to the same cell, behind this one's.
    if (!is_last && next < end_ && p_.next_state[next] == ends.cell) ends.cell = -1;
    return ends;
  }
  __device__ float* states(int32_t cell) const {
    return layer_.states.template at<float>(cell) + head_ * layer_.state_elements();
  }
  // Where two neighbouring elements d of the state stand: those of element c of tile n.
  __device__ int at(int a, int n, int c) const {
    return state_index(stretch_ * 32 + a * 16 + 2 * i_, first_ + 8 * n + 2 * j_ + c);
  }
  __device__ void move(const Tile (&moved)[2], float decay) {
#pragma unroll
    for (int a = 0; a < 2; ++a)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          state_[a][n][k] = __fmaf_rn(decay, state_[a][n][k], moved[a][n][k] + 0.0f);
  }
  // For the makers, who go on while the outputs are written; keepers wait for each other later.
  __device__ void put_operand() const {
#pragma unroll
    for (int a = 0; a < 2; ++a)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          *reinterpret_cast<uint32_t*>(shared_.operand + (8 * n + 2 * j_ + c) * kOperandStride +
                                       stretch_ * 32 + a * 16 + 2 * i_) =
              pack_bf16(state_[a][n][c], state_[a][n][2 + c]);
    named_arrive(kStateIsThere, kCarryThreads);
  }

  __device__ void write_state(int32_t cell) const {
    bf16_t* operand = layer_.operands.template at<bf16_t>(cell) + head_ * layer_.state_elements();
#pragma unroll
    for (int a = 0; a < 2; ++a)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float low = state_[a][n][c], high = state_[a][n][2 + c];
          *reinterpret_cast<float2*>(states(cell) + at(a, n, c)) = {low, high};
          *reinterpret_cast<uint32_t*>(operand + at(a, n, c)) = pack_bf16(low, high);
        }
  }

  __device__ void write_outputs(const Piece& piece, const Ends& ends, const Tile& of_state,
                                const Tile& dots) const {
    float2 v[2][kTiles];
    if (p_.skips) load_inputs(piece, v);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!piece.has(slot_of(r))) continue;
      const float decay = ends.decays[r];
      float* out = p_.out + piece.row(slot_of(r)) * p_.out_stride + head_ * layer_.value_size +
                   first_ + 2 * j_;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float o[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int k = 2 * r + c;
          o[c] = __fmaf_rn(decay, of_state[n][k], dots[n][k] + 0.0f);
          if (p_.skips) o[c] = __fmaf_rn(p_.skips[head_], c ? v[r][n].y : v[r][n].x, o[c]);
        }
        *reinterpret_cast<float2*>(out + 8 * n) = {o[0], o[1]};
      }
    }
  }

 public:
  int64_t end_ = 0;  // of the sequence's rows

 private:
  float state_[2][kTiles][4];
  StepOutputs queries_[kSteps];
  Weights loaded_[2];
};

}  // namespace invar::cuda::carry
