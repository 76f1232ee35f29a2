// Long runs of rows in recurrent layers, order hopper: what a sequence's rows in one chunk weigh is
// computed for all chunks at once (recurrent_weights.cu); then blocks go through the chunks, each
// with some elements of the values of a head (recurrent_carry.cu).
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/recurrent.h"

namespace invar::cuda {

constexpr int kPieceKey = 128;    // R of the layers that have such kernels
constexpr int kPieceValues = 32;  // elements of a value that a block has
constexpr int kStretches = kChunkSlots / kStretchSlots;

// A row of a fragment of 16 rows and 16 inner elements: what a lane gives to step().
using Fragment = uint4;

// The weights of the rows of one chunk in one head. A stretch is 16 rows or slots; fragments have
// rows of a stretch, or 16 elements of a key, and the slots of a stretch.
struct PieceWeights {
  Fragment of_queries[kStretches * (kStretches + 1) / 2][kWarp];  // see query_block
  Fragment of_keys[kStretches * (kStretches - 1) / 2][kWarp];     // see key_block
  Fragment folded[kPieceKey / 16][kStretches][kWarp];   // keys, decayed as far as the boundary
  float own[kStretches][kStretchSlots][kStretchSlots];  // [.][slot][row]: of keys in a stretch
  float decay[kChunkSlots];                             // exp of the sum of decays

  __device__ static int query_block(int rows, int slots) { return rows * (rows + 1) / 2 + slots; }
  __device__ static int key_block(int rows, int slots) { return rows * (rows - 1) / 2 + slots; }
};

// Rows of a sequence in one chunk: row `begin` has the slot `slot`, the last one `seen` - 1.
struct Piece {
  int64_t begin;
  int slot, seen;
  __device__ int64_t row(int s) const { return begin + s - slot; }
  __device__ bool has(int s) const { return s >= slot && s < seen; }
  __device__ bool ends_chunk() const { return seen == kChunkSlots; }
};

// The queries or keys of two neighbouring slots, as steps take them: zeros where the piece has
// none.
constexpr int kKeySteps = kPieceKey / 16;
__device__ __forceinline__ void load_rows(const RecurrentLayer& layer, const void* rows,
                                          int key_head, const Piece& piece, int slot,
                                          StepOutputs (&x)[kKeySteps]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool is_there = piece.has(slot + r);
    const uint32_t* row = reinterpret_cast<const uint32_t*>(
        static_cast<const bf16_t*>(rows) +
        (piece.row(slot + r) * layer.key_heads + key_head) * kPieceKey);
#pragma unroll
    for (int s = 0; s < kKeySteps; ++s) {
      const StepRows pairs = is_there ? load_row(row, s, threadIdx.x % kWarp) : StepRows{};
      x[s].a[r] = pairs.b[0], x[s].a[2 + r] = pairs.b[1];
    }
  }
}

// Where elements of a head stand: cells are in rows, whose sizes need no padding here.
__device__ inline int value_index(const RecurrentLayer& layer, int slot, int e) {
  return slot * layer.value_size + e;
}
__device__ inline int state_index(int d, int e) {
  return e * kPieceKey + d;
}

// The rows of a sequence.
struct SequenceRows {
  __device__ SequenceRows(const RecurrenceParams& p, int sequence)
      : first(p.sequence_begin[sequence]),
        end(p.sequence_begin[sequence + 1]),
        position(end - first > kStretchSlots ? p.places.positions[first] : 0),
        is_long(end - first > kStretchSlots &&
                p.places.table_of[first] == p.places.table_of[end - 1] &&
                p.places.positions[end - 1] - position == end - 1 - first) {}

  __device__ int pieces() const {
    return is_long ? static_cast<int>((slot() + end - first + kChunkSlots - 1) / kChunkSlots) : 0;
  }
  __device__ Piece piece(int number) const {
    const int64_t begin = number == 0 ? first : first + number * kChunkSlots - slot();
    const int own = number == 0 ? slot() : 0;
    const int64_t seen = own + end - begin;
    return {begin, own, static_cast<int>(seen < kChunkSlots ? seen : kChunkSlots)};
  }

  int64_t first, end;
  int position;  // of the first, where they may be a long run
  // Whether these kernels compute them: they are one path, whose positions ascend one by one, and
  // more than a stretch.
  bool is_long;

 private:
  __device__ int slot() const { return position % kChunkSlots; }
};

// At most so many pieces have rows in a step; none where no sequence can have a long run.
constexpr int64_t most_pieces(int64_t rows, int64_t sequences) {
  const int64_t most_long = (rows - sequences) / kStretchSlots;
  if (most_long <= 0) return 0;
  return rows / kChunkSlots + 2 * (most_long < sequences ? most_long : sequences);
}

// The pieces [first, first + count) of a step; their weights, [count][heads].
struct PieceRange {
  int first, count;
  PieceWeights* weights;
};
// Whether a layer has kernels of its own for long runs and for few rows.
bool has_own_kernels(const RecurrenceParams& p);
// The whole step by these kernels.
void recur_in_pieces(const RecurrenceParams& p, const Execution& on);

void weigh_pieces(const RecurrenceParams& p, const PieceRange& range, const Execution& on);
void carry_states(const RecurrenceParams& p, const PieceRange& range, const Execution& on);
// Every sequence that has no long run.
void recur_short_rows(const RecurrenceParams& p, const Execution& on);

}  // namespace invar::cuda
