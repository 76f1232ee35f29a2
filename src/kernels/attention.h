// Parameters of attention (numerics 4), from the product of q, k and v weights to its output. The
// letters of the shapes are those of kernels/inference.h.
#pragma once

#include <cstdint>

#include "kernels/matrix.h"

namespace invar {

// Rotates heads where they lie, as `qkv` does, in f32: for norms that stand behind the rotation.
struct RotateHeadsParams {
  float* x;  // [T][heads * E]
  int64_t x_stride;
  int64_t rows;
  int32_t heads, head_dim;
  const int32_t* positions;  // [T]
  const float* cos;          // [position][E/2]
  const float* sin;
};

// From the product of q, k and v weights: normalises heads (Qwen3), rotates, rounds, and writes
// queries to `q` and keys and values to their slots. Rotation pairs e with e + E/2.
struct QkvParams {
  const float* qkv;  // [T][(H + 2G) * E]
  int64_t qkv_stride;
  int64_t rows;
  int32_t heads;        // H; kv.kv_heads and kv.head_dim give G and E
  const float* q_norm;  // [E] or null
  const float* k_norm;
  float norm_eps;
  const int32_t* positions;  // [T]
  const float* cos;          // [position][E/2]
  const float* sin;
  // Row t's key and value go to slots write_begin[t] .. write_begin[t + 1] of these lists (one
  // slot, except for draft rows that several paths share).
  const int32_t* write_begin;  // [T + 1]
  const int32_t* write_block;
  const int32_t* write_slot;  // within the block
  KvLayer kv;
  bf16_t* q;         // [T][H][round_up(E, 32)]; pad zero; f32 where the cache is (KvLayer::type)
  bool* non_finite;  // [T]: set to true when a key or value of the row was not finite (the request
                     // fails)
};

// Values of fewer elements than keys, where `qkv` reads them: each times `scale`, then zeros.
struct PlaceValuesParams {
  const float* x;  // [T][heads * width]
  int64_t rows;
  int32_t heads, width, head_dim;
  float scale;
  float* out;  // [T][heads * head_dim]
  int64_t out_stride;
};

// The product of q, k and v weights and then `qkv`, one head after the other, so that of the
// product only a head at a time exists: it never leaves the core's cache. Shares are key/value
// heads with their queries, or with many rows some of the rows. E is a multiple of 16.
struct QkvProductParams {
  Activation x;       // [T][D]
  Matrix w;           // [(H + 2G) * E][D]; one run
  const float* bias;  // or null
  QkvParams then;     // its qkv and qkv_stride are not read
  float* scratch;     // [shares][T][qkv_scratch_stride(E)]
};

// Room for a head's keys and values, in an odd number of cache lines.
constexpr int64_t qkv_scratch_stride(int64_t head_dim) {
  return 2 * round_up(head_dim, 32) + 16;
}

// Tables that at least so many rows stand for have many rows: a GPU reads them by tiles of rows,
// the others row by row.
constexpr int kManyRows = 16;

// Whole splits from position 0 on that some of 64 neighbouring rows read in the same blocks, and
// see all slots of.
struct SharedPrefix {
  int32_t first_row = 0, splits = 0;
  uint64_t rows = 0;  // bit i: row first_row + i does

  bool operator==(const SharedPrefix&) const = default;
};

// Attention by slot, numerics 4. Row t reads the blocks of block table table_of[t]; slots after
// its position are invalid, with window > 0 also slots <= position - window, and with chunk > 0
// also those before the last multiple of `chunk` that is not above the position.
struct AttentionParams {
  const bf16_t* q;  // [T][H][round_up(E, 32)]; f32 where the cache is
  int64_t rows;
  int32_t heads;
  const int32_t* positions;      // [T]
  const int32_t* table_of;       // [T], rows of one table stand together
  const int32_t* const* tables;  // block tables: block of slots [i * P, (i + 1) * P)
  int32_t window;
  KvLayer kv;
  Activation out;           // [T][H * E]; pad columns set to zero
  void* scratch = nullptr;  // Kernels::attention_scratch bytes, or null
  // The fewest and the most rows that one table stands for, as far as the caller knows. They choose
  // between kernels for few rows and for many.
  int32_t fewest_rows = 1, most_rows = INT32_MAX;
  // [1 + T]: how many rows have tables without many rows, and these rows, ascending; needed on a
  // GPU where some tables may have many.
  const int32_t* few_rows = nullptr;
  // Whether the rows end at about the same position: a GPU shares them out in a simpler way then,
  // which is right for any rows.
  bool rows_are_even = false;
  // Prefixes that may be read once for several rows, which have tables of few rows, and how many
  // splits of each row they cover.
  const SharedPrefix* shared = nullptr;    // [num_shared]
  const int32_t* shared_splits = nullptr;  // [T]
  int32_t num_shared = 0;
  // A score is multiplied by it before it is an exponent; 0: 1 / sqrt(E).
  double score_scale = 0;
  float score_cap = 0;           // scores are cap * tanh(score / cap); 0: as they are
  const float* sinks = nullptr;  // [H] or null: one more split for each head (numerics 4.1)
  int32_t chunk = 0;             // 0: none; on a GPU there is none
};

// How scores become exponents of 2 (numerics 4.1): d stays as it is, or with a cap it becomes
// half_tanh(d * inner); then it is multiplied by `factor`.
struct ScoreScale {
  float factor = 0, inner = 0;  // inner 0: no cap
};
inline ScoreScale score_scale(const AttentionParams& p) {
  constexpr double kLog2e = 0x1.71547652b82fep+0;
  const double e = p.kv.head_dim;
  if (p.score_cap == 0)
    return {static_cast<float>(p.score_scale > 0 ? kLog2e * p.score_scale
                                                 : kLog2e / __builtin_sqrt(e))};
  const double cap = p.score_cap, scale = p.score_scale > 0 ? p.score_scale : 1 / __builtin_sqrt(e);
  return {static_cast<float>(kLog2e * cap), static_cast<float>(2 * scale / cap)};
}

// The first slot that a position sees.
constexpr int32_t first_slot(int32_t position, int32_t window, int32_t chunk) {
  const int32_t of_chunk = chunk > 0 ? position - position % chunk : 0;
  const int32_t of_window = window > 0 && position >= window ? position - window + 1 : 0;
  return of_window > of_chunk ? of_window : of_chunk;
}
constexpr int32_t first_slot(const AttentionParams& p, int64_t t) {
  return first_slot(p.positions[t], p.window, p.chunk);
}

// `qkv` and then attention, for rows of which none reads the key or the value of another one. So
// only a row's own key and value are not in the cache before. `of.q` is not read.
struct RotatedAttentionParams {
  QkvParams rotation;
  AttentionParams of;
};

// Attention to some of a row's slots. `max` and `sum` allow to merge it with the attention to
// others, or to compute its gradient.
struct PartialAttentionParams {
  AttentionParams of;
  // [T], at most positions[t] each, or null: slots before them are invalid, too.
  const int32_t* begin = nullptr;
  // [T][H] each, or null: M and L at the end of step 4.
  float* max = nullptr;
  float* sum = nullptr;
};

constexpr int32_t first_slot(const PartialAttentionParams& p, int64_t t) {
  const int32_t of_window = first_slot(p.of, t);
  return p.begin && p.begin[t] > of_window ? p.begin[t] : of_window;
}

// Latent attention (numerics 4.3): writes the rows that `qkv` reads, with one key/value head of
// rank + turning elements. A query is its latent and the elements that turn beside it; the key is
// the row's latent and the elements that turn beside that; the value is the latent and zeros. The
// turning elements begin the two halves of a query or key, and the latent fills them.
struct PlaceLatentParams {
  const float* queries;          // [T][H][rank]
  const float* turning_queries;  // [T][H][turning]
  int64_t turning_stride;
  const float* latents;  // [T][rank + turning]
  int64_t latent_stride;
  int64_t rows;
  int64_t heads, rank, turning;
  float* out;  // [T][(H + 2) * (rank + turning)]
};

}  // namespace invar
