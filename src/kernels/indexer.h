// Parameters of an indexer (numerics 4.6): it chooses which slots a row attends to. The letters of
// the shapes are those of kernels/inference.h; I is the size of the indexer's heads.
#pragma once

#include <cstdint>

#include "kernels/layout.h"

namespace invar {

// Index keys go to their slots, rounded and finite.
struct StoreIndexParams {
  const float* keys;  // [T][I], normed and turned
  int64_t stride;
  int64_t rows;
  const int32_t* write_begin;  // as QkvParams
  const int32_t* write_block;
  const int32_t* write_slot;
  KvLayer kv;
  bool* non_finite;  // [T]: as QkvParams
};

// The score of every slot that a row sees, the row's own among them.
struct IndexScoresParams {
  const bf16_t* q;  // [T][q_stride]: of all heads
  int64_t q_stride;
  const float* weights;  // [T][weights_stride]: of each head
  int64_t weights_stride;
  int64_t rows;
  int32_t heads;
  const int32_t* positions;  // [T]
  const int32_t* table_of;   // [T], rows of one table stand together
  const int32_t* const* tables;
  KvLayer kv;
  float* scores;  // [T][scores_stride]
  int64_t scores_stride;
};

// The `most` slots of each row that have the highest scores, ascending. Every row sees more slots
// than that.
struct ChooseSlotsParams {
  const float* scores;  // [T][scores_stride]
  int64_t scores_stride;
  int64_t rows;
  const int32_t* positions;  // [T]
  int32_t most;
  int32_t* chosen;  // [T][most]
};

// The keys and values of the slots that each row has chosen go to the row's own blocks, one slot
// behind the other: row t's are blocks t * B and the following ones, with B blocks of `most` slots.
// The slots behind them in their leaf become zeros. There is one key/value head, of bf16.
struct GatherSlotsParams {
  KvLayer from, to;
  int64_t rows;
  const int32_t* table_of;  // [T]
  const int32_t* const* tables;
  const int32_t* chosen;  // [T][most]
  int32_t most;

  constexpr int64_t blocks() const { return (most + to.block_size - 1) / to.block_size; }
};

}  // namespace invar
