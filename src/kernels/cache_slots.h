// Parameters of the operations that move keys, values and states within the cache. The letters of
// the shapes are those of kernels/inference.h.
#pragma once

#include <cstdint>

#include "kernels/layout.h"

namespace invar {

// This step's keys and values go from the slots that `qkv` wrote to those that store them in 8 bits
// (kv.stored; numerics 4.2).
struct StoreSlotsParams {
  KvLayer kv;
  int64_t rows;
  const int32_t* write_begin;  // as QkvParams
  const int32_t* write_block;
  const int32_t* write_slot;
};

// Keys and values that are stored in 8 bits become the bf16 numbers that they stand for, where
// attention reads them: all slots that a row sees, in whole leaves.
struct LoadSlotsParams {
  KvLayer kv;
  int64_t rows;
  int32_t window;            // as AttentionParams
  const int32_t* positions;  // [T]
  const int32_t* table_of;   // [T], rows of one table stand together
  const int32_t* const* tables;
  int32_t chunk = 0;
};

struct CopySlotsParams {
  KvLayer kv;
  const SlotCopy* copies;  // in order; no block is both source and target
  int64_t count;
};

// Copies cells to others. No `to` is another copy's `from` or `to`.
struct CopyCellsParams {
  Cells cells;
  const CellCopy* copies;
  int64_t num_copies;
};

}  // namespace invar
