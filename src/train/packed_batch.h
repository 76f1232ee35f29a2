// Packed rows as a batch of the forward.
#pragma once

#include <span>

#include "kv/sequence_store.h"
#include "model/batch.h"
#include "model/decoder_spec.h"
#include "train/packed_row.h"

namespace invar {

// The block size of the cache that packed rows are computed in.
constexpr int kTrainingBlockSize = 64;
// Blocks that `rows` packed rows of `context` positions need at most.
int packed_blocks(int rows, int context);

// The store for so many packed rows: blocks, and a cell for each sequence
// where layers have states.
StoreOptions packed_store(const DecoderSpec& spec, int rows, int context, CacheLayout layout);

// The rows' sequences, one after the other, in blocks and cells of their own; all positions want
// logits.
void fill_batch(std::span<const PackedRow> rows, Batch& batch);

// Whether row t + n of the batch belongs to the sequence of row t.
bool has_row_after(const Batch& batch, size_t t, size_t n);

}  // namespace invar
