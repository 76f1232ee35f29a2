#include "train/packed_batch.h"

#include "kv/cell_placement.h"
#include "model/parts/part.h"

namespace invar {

int packed_blocks(int rows, int context) {
  return rows * ((context + kTrainingBlockSize - 1) / kTrainingBlockSize + kMaxSequencesPerRow);
}

// All chunks of a sequence but its last are scratch.
StoreOptions packed_store(const DecoderSpec& spec, int rows, int context, CacheLayout layout) {
  const bool has_cells = has_states(spec);
  return {.blocks = packed_blocks(rows, context),
          .block_size = kTrainingBlockSize,
          .cells = has_cells ? rows * kMaxSequencesPerRow : 0,
          .scratch = {.chunks = has_cells ? rows * (context / kBoundary) : 0},
          .layout = layout};
}

void fill_batch(std::span<const PackedRow> rows, Batch& batch) {
  batch.rows.clear();
  batch.sequences.clear();
  batch.logit_rows.clear();
  int32_t block = 0;
  for (const PackedRow& row : rows) {
    size_t next = 0;  // sequence of the row
    int32_t position = 0;
    for (size_t i = 0; i < row.tokens.size(); ++i, ++position) {
      if (next < row.begins.size() && static_cast<size_t>(row.begins[next]) == i) {
        batch.sequences.push_back({.cell = static_cast<int32_t>(batch.sequences.size())});
        position = 0;
        ++next;
      }
      if (position % kTrainingBlockSize == 0) batch.sequences.back().blocks.push_back(block++);
      batch.logit_rows.push_back(static_cast<int32_t>(batch.rows.size()));
      batch.rows.push_back(
          {row.tokens[i], position, static_cast<int32_t>(batch.sequences.size()) - 1});
    }
  }
}

bool has_row_after(const Batch& batch, size_t t, size_t n) {
  return t + n < batch.rows.size() && batch.rows[t + n].sequence == batch.rows[t].sequence;
}

}  // namespace invar
