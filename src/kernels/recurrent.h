// Recurrent layers (numerics 4.4): what their operations take. The letters of inference.h, and: K
// key heads, R the size of a key, V that of a value, H value heads.
//
// Positions are cut into chunks of 64 at absolute multiples. A row leaves its key k, its value u
// and the sum G of its decays at its slot of the chunk, as a row of attention leaves its key and
// its value. The state S changes at the boundaries of chunks alone. So a table of a path of
// positions has for each chunk the number of its cell in the memory for chunks; and a row says
// which cell of the memory for states has S of its chunk. CellTables of model/step_tables.h has
// these numbers. Inputs are what f32 arithmetic gives: none is subnormal.
#pragma once

#include <atomic>

#include "kernels/inference.h"

namespace invar {

constexpr int kChunkSlots = 64;      // positions between two states
constexpr int kStretchSlots = 16;    // whose values depend on each other one by one
constexpr int kMostStateSize = 256;  // of a key or a value
constexpr int kMostTaps = 8;         // of a short convolution

// A part calls these in a step of T rows, in this order. w = 2 K R + H V is the width of queries,
// keys and values side by side; numbers of cells are those of CellTables.
//
// copy_cells, where there are copies: chunks of the layer to scratch ones, before anything is
// written. A sequence has one chunk, and a piece that leaves it, or a draft path, needs another.
//
// short_conv: x [T][w], products of the normed stream, go to their slots in the chunks' `inputs`
// [64][w]; out [T][w] is f32. The inputs that the next chunk's first rows look back to go to
// `before` [taps - 1][w] of the next state, behind the last read of what stood there.
//
// recurrent_gates: a and z [T][H], products of the normed stream; gives decays [T][H] (with
// channels [T][H * R]) and factors [T][H].
//
// recurrent_keys: queries and keys [T][K * R], columns of what short_conv gave; gives q and k
// [T][K] [R padded], and each key in its slot of `keys`.
//
// recurrence: values [T][H * V], columns of what short_conv gave, and what the two before gave;
// leaves values and sums in their slots and next states in their cells; out [T][H * V]. Rows of a
// sequence go one after the other, so that a state may move in its place.
//
// gated_norm: x [T][H * V] with a group for each value head, the gates [T][H * V] a product of the
// normed stream; out is what the output product multiplies.

// Where the rows of a step stand. Rows of a draft tree have a table for each path from its root to
// a leaf; a row that several paths share is written to the chunks of each. A row stands behind its
// ancestors; those that are no drafts stand side by side.
struct RowPlaces {
  int64_t rows = 0;                        // T
  const int32_t* positions = nullptr;      // [T]
  const int32_t* table_of = nullptr;       // [T]
  const int32_t* const* tables = nullptr;  // [.][chunk of the path]: its cell
  // Row t writes its slot of the cells write_begin[t] .. write_begin[t + 1] of this list, that of
  // its own table among them.
  const int32_t* write_begin = nullptr;  // [T + 1]
  const int32_t* write_cell = nullptr;

  constexpr int slot(int64_t t) const { return positions[t] % kChunkSlots; }
  // The cell of the chunk of a position that row t sees.
  constexpr int32_t cell_of(int64_t t, int64_t position) const {
    return tables[table_of[t]][position / kChunkSlots];
  }
};

// Sets what several shares may set.
inline void mark(bool& flag) {
  std::atomic_ref(flag).store(true, std::memory_order_relaxed);
}

// delta            gated delta rule, a decay for each head
// channel_delta    the same, a decay for each channel of a key (KDA)
// state_space      Mamba 2
enum class Recurrence : uint8_t { delta, channel_delta, state_space };

// The memory of one recurrent layer. Operands of products are bf16, or f32 in mode exact. A chunk
// or state has equal parts, one for each head, padded with zeros to whole panels and leaves. They
// lie as Kernels::cache says:
//   panels  as packed weights (packed_index_bf16 and _f32 of kernels/layout.h), so that products
//           read them as such: keys 64 outputs and R inner elements, values V and 64, states V and
//           R
//   rows    keys [64][round_up(R, 32)], values [64][round_up(V, 16)], states [V][round_up(R, 32)]
// Cells of chunks begin as zeros and only ever hold finite keys and values.
struct RecurrentLayer {
  Recurrence kind = Recurrence::delta;
  int32_t key_heads = 0, heads = 0;      // K, H; K divides H
  int32_t key_size = 0, value_size = 0;  // R, V, at most kMostStateSize
  DType type = DType::bf16;
  CacheLayout layout = CacheLayout::panels;
  Cells keys;      // k of a chunk: [K] of key_elements()
  Cells values;    // u of a chunk: [H] of value_elements()
  Cells sums;      // G of a chunk: [H][64] f32, or with channels [H][64][R]
  Cells states;    // S: [H] of state_elements(), f32
  Cells operands;  // the same rounded to bf16; not read where the type is f32

  constexpr bool is_f32() const { return type == DType::f32; }
  constexpr int64_t channels() const { return kind == Recurrence::channel_delta ? key_size : 1; }
  constexpr int64_t padded_key() const { return round_up(key_size, kLeafPad); }
  constexpr int64_t key_elements() const { return kChunkSlots * padded_key(); }  // of a head
  constexpr int64_t value_elements() const {
    return kChunkSlots * round_up(value_size, kPanelWidth);
  }
  constexpr int64_t state_elements() const {
    return round_up(value_size, kPanelWidth) * padded_key();
  }
  constexpr int64_t sum_elements() const { return kChunkSlots * channels(); }
  // Where an element of a head stands in it.
  constexpr int64_t key_index(int64_t slot, int64_t d) const {
    return is_rows() ? slot * padded_key() + d : packed_index(slot, d, key_size);
  }
  constexpr int64_t value_index(int64_t slot, int64_t e) const {
    return is_rows() ? slot * round_up(value_size, kPanelWidth) + e
                     : packed_index(e, slot, kChunkSlots);
  }
  constexpr int64_t operand_index(int64_t d, int64_t e) const {
    return is_rows() ? e * padded_key() + d : packed_index(e, d, key_size);
  }
  constexpr int64_t state_index(int64_t d, int64_t e) const {
    return is_rows() ? e * padded_key() + d : packed_index_f32(e, d, key_size);
  }

 private:
  constexpr bool is_rows() const { return layout == CacheLayout::rows; }
  constexpr int64_t packed_index(int64_t output, int64_t inner, int64_t k) const {
    return is_f32() ? packed_index_f32(output, inner, k) : packed_index_bf16(output, inner, k);
  }
};

// A row keeps x, or x * factor, and y = act((the sum over taps j of weight[j] * what was kept taps
// - 1 - j positions before) (+ bias)), y = silu(y), y * gate. The kept value goes to the row's
// slot; and a row in a chunk's last slot leaves the last taps - 1 inputs beside the next state,
// since a sequence has one chunk alone, which the next rows overwrite. Shares are channels.
struct ShortConvParams {
  const float* x;  // [T][D]
  int64_t x_stride;
  const float* factor;  // [T][D] or null
  int64_t factor_stride;
  RowPlaces places;
  int32_t sequences;    // of the rows: with as many of them as rows, no row sees another one
  int64_t channels;     // D
  int32_t taps;         // 2 .. kMostTaps
  const float* weight;  // [taps][D], that of a row's own input last
  const float* bias;    // [D] or null
  bool silu;
  const float* gate;  // [T][D] or null
  int64_t gate_stride;
  Cells inputs;  // a chunk has [64][D] elements of `type`, bf16 or f32
  Cells before;  // a state has [taps - 1][D] of them: of the positions before its boundary
  DType type;
  // [T]: the state that has what came before the row's chunk; -1: the row's table has that.
  const int32_t* before_of;
  const int32_t* next_state;  // [T]: where a row in a chunk's last slot leaves it; -1: nowhere
  Activation out;             // [T][D]; pad columns set to zero
  bool* non_finite;           // [T]: set to true when what is kept was not finite

  // The inputs of a position that row t sees; null before position 0.
  constexpr char* inputs_of(int64_t t, int64_t position) const {
    if (position < 0) return nullptr;
    const int64_t bytes = channels * (type == DType::bf16 ? 2 : 4);  // size_of is the host's
    const int64_t after = position - places.positions[t] / kChunkSlots * kChunkSlots;
    if (after < 0 && before_of[t] >= 0)
      return before.at<char>(before_of[t]) + (after + taps - 1) * bytes;
    return inputs.at<char>(places.cell_of(t, position)) + position % kChunkSlots * bytes;
  }
  // Whether row t leaves inputs beside the next state. A sequence's state moves in its place: of
  // the rows that end chunks here, the last one is the one whose inputs stay.
  constexpr bool leaves_inputs(int64_t t) const {
    const int64_t next = t + kChunkSlots;
    return next_state[t] >= 0 && !(next < places.rows && next_state[next] == next_state[t]);
  }
};

// Makes decays and factors; A = -exp(log_rate). delta: g = softplus(a + bias) * A, and b = 1 / (1 +
// exp(-z)), twice that with `doubles`. state_space: b = softplus(a + bias) within the limits, and g
// = b * A.
struct RecurrentGatesParams {
  Recurrence kind;
  const float* a;  // [T][H], with channels [T][H * R]
  int64_t a_stride;
  const float* z;  // [T][H]; not read for state_space
  int64_t z_stride;
  const float* log_rate;  // [H]: A_log
  const float* bias;      // [H], with channels [H * R]
  int64_t rows;
  int64_t heads, channels;  // H; 1 or R
  bool doubles;
  float least, most;  // of state_space
  float* decays;      // g [T][H * channels]
  float* factors;     // b [T][H]
};

// Queries and keys as `recurrence` takes them, x * rs * scale with rs = 1 / sqrt(sum64(x * x) +
// eps), or x itself; a key goes to its slot, too.
struct RecurrentKeysParams {
  const float* queries;  // [T][K * R]
  const float* keys;     // [T][K * R]
  int64_t stride;        // of both
  bool normalises;
  float eps, scale;  // of queries
  RecurrentLayer layer;
  RowPlaces places;
  void* q;           // [T][K][round_up(R, 32)] of the layer's type; pad zero
  void* k;           // likewise
  bool* non_finite;  // [T]: set to true when a key was not finite
};

// Rows of sequences: u, G and the output of each, and behind a chunk's last slot the next state.
// Shares are heads of sequences.
struct RecurrenceParams {
  RecurrentLayer layer;
  RowPlaces places;
  const void* q;  // as RecurrentKeysParams
  const void* k;
  const float* v;  // [T][H * V]
  int64_t v_stride;
  const float* decays;   // g [T][H], with channels [T][H * R]
  const float* factors;  // b [T][H]
  const float* skips;    // [H] or null: out = skip * v + out (D of Mamba 2)
  // Rows of sequence i are sequence_begin[i] .. sequence_begin[i + 1]: no other one reads what they
  // write.
  const int32_t* sequence_begin;  // [sequences + 1]
  int32_t sequences;
  const int32_t* state_of;  // [T]: the state of the row's chunk; -1: zeros
  // [T]: of a row in a chunk's last slot, where the next state goes; -1: nowhere. It may be
  // state_of[t] where no row after t reads that.
  const int32_t* next_state;
  float* out;  // [T][H * V]
  int64_t out_stride;
  bool* non_finite;  // [T]: set to true when u of a row was not finite; by several shares
  Operation<MatmulParams> matmul;  // of the same table
  void* scratch = nullptr;         // Kernels::attention_scratch bytes, or null
};

// Each of a row's groups of N elements: y = ((x * rs) * w) * f(z), or with `gate_first` y =
// ((x * f(z)) * rs) * w of that; f is silu or the logistic function. Without a weight there is no
// norm, without a gate no f. rs as RmsNormParams has it.
struct GatedNormParams {
  const float* x;  // [T][groups * N]
  int64_t x_stride;
  const float* gate;  // [T][groups * N] or null
  int64_t gate_stride;
  const float* weight;  // [N], with own_weights [groups * N]; or null
  bool own_weights;
  bool is_sigmoid, gate_first;
  float eps;
  int64_t rows, groups, width;  // width: N
  Activation out;               // [T][groups * N]; pad columns set to zero
};

}  // namespace invar
