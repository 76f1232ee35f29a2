#include "model/batch.h"

#include "base/error.h"

namespace invar {

namespace {

void require(bool condition, const char* what) {
  if (!condition) fail("a batch is malformed: {}", what);
}

bool ascends(const std::vector<int32_t>& values) {
  for (size_t i = 1; i < values.size(); ++i)
    if (values[i] <= values[i - 1]) return false;
  return values.empty() || values[0] >= 0;
}

}  // namespace

void expect_valid(const Batch& batch) {
  for (size_t t = 0; t < batch.rows.size(); ++t) {
    const BatchRow& row = batch.rows[t];
    require(row.token >= 0 && row.position >= 0, "a negative token or position");
    require(row.sequence >= 0 && row.sequence < std::ssize(batch.sequences),
            "a row of a sequence that is not there");
    require(row.parent >= -1 && row.parent < static_cast<int64_t>(t),
            "a parent that is not an earlier row");
    require(row.features >= -1 && row.features < std::ssize(batch.features),
            "a row of features that is not there");
    require(int64_t{row.position} + row.rotation_offset >= 0 &&
                int64_t{row.position} + row.rotation_offset <= INT32_MAX,
            "an impossible rotation");
    if (row.parent >= 0) {
      const BatchRow& parent = batch.rows[row.parent];
      require(parent.sequence == row.sequence && parent.position + 1 == row.position,
              "a parent that is not the position before its child");
    }
  }
  for (const BatchSequence& sequence : batch.sequences) {
    for (const int32_t block : sequence.blocks) require(block >= 0, "a negative block");
    require(sequence.cell >= -1, "a negative cell");
    require(sequence.adapter >= -1 && sequence.adapter < AdapterLoad::kMostSlots,
            "an impossible slot of an adapter");
  }
  for (const auto& copies : {batch.chunk_copies, batch.state_copies})
    for (const CellCopy& copy : copies)
      require(copy.from >= 0 && copy.to >= 0, "a copy of a negative cell");
  for (const AdapterLoad& load : batch.adapters)
    require(load.slot >= 0 && load.slot < AdapterLoad::kMostSlots && load.rank >= 1 &&
                load.rank <= (1 << 16),
            "an impossible adapter");
  for (const int32_t block : batch.scratch_blocks) require(block >= 0, "a negative scratch block");
  require(ascends(batch.logit_rows), "logit rows do not ascend");
  require(batch.logit_rows.empty() || batch.logit_rows.back() < std::ssize(batch.rows),
          "a logit row that is not there");
  require(ascends(batch.aux_layers), "aux layers do not ascend");
  require(ascends(batch.skipped_layers), "skipped layers do not ascend");
  require(batch.layer_begin >= 0 && batch.layer_end >= -1 &&
              (batch.layer_end == -1 || batch.layer_end >= batch.layer_begin),
          "an impossible range of layers");
}

}  // namespace invar
