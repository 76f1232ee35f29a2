#include "model/batch.h"

#include "base/bytes.h"

namespace invar {

namespace {

constexpr uint64_t kBatchMagic = 0x3130485441425649;  // "IVBATH01"

void require(bool condition, const char* what) {
  if (!condition) fail("a batch is malformed: {}", what);
}

bool ascends(const std::vector<int32_t>& values) {
  for (size_t i = 1; i < values.size(); ++i)
    if (values[i] <= values[i - 1]) return false;
  return values.empty() || values[0] >= 0;
}

// What the reader of a batch relies on; blocks and layers are compared with the model where it is
// known.
void check_batch(const Batch& batch) {
  for (size_t t = 0; t < batch.rows.size(); ++t) {
    const BatchRow& row = batch.rows[t];
    require(row.token >= 0 && row.position >= 0, "a negative token or position");
    require(row.sequence >= 0 && row.sequence < std::ssize(batch.sequences),
            "a row of a sequence that is not there");
    require(row.parent >= -1 && row.parent < static_cast<int64_t>(t),
            "a parent that is not an earlier row");
    if (row.parent >= 0) {
      const BatchRow& parent = batch.rows[row.parent];
      require(parent.sequence == row.sequence && parent.position + 1 == row.position,
              "a parent that is not the position before its child");
    }
  }
  for (const BatchSequence& sequence : batch.sequences)
    for (const int32_t block : sequence.blocks) require(block >= 0, "a negative block");
  for (const int32_t block : batch.scratch_blocks) require(block >= 0, "a negative scratch block");
  require(ascends(batch.logit_rows), "logit rows do not ascend");
  require(batch.logit_rows.empty() || batch.logit_rows.back() < std::ssize(batch.rows),
          "a logit row that is not there");
  require(ascends(batch.aux_layers), "aux layers do not ascend");
  require(batch.layer_begin >= 0 && batch.layer_end >= -1 &&
              (batch.layer_end == -1 || batch.layer_end >= batch.layer_begin),
          "an impossible range of layers");
}

}  // namespace

std::string to_bytes(const Batch& batch) {
  ByteWriter out;
  out.put(kBatchMagic);
  out.put(batch.layer_begin);
  out.put(batch.layer_end);
  out.put_vector(batch.rows);
  out.put(static_cast<uint64_t>(batch.sequences.size()));
  for (const BatchSequence& sequence : batch.sequences) out.put_vector(sequence.blocks);
  out.put_vector(batch.logit_rows);
  out.put_vector(batch.aux_layers);
  out.put_vector(batch.scratch_blocks);
  return out.take();
}

Batch batch_from_bytes(std::string_view bytes) {
  ByteReader in(bytes, "a batch");
  require(in.get<uint64_t>() == kBatchMagic, "it does not begin with IVBATH01");
  Batch batch;
  batch.layer_begin = in.get<int32_t>();
  batch.layer_end = in.get<int32_t>();
  batch.rows = in.get_vector<BatchRow>();
  batch.sequences.resize(in.get_count(sizeof(uint64_t)));
  for (BatchSequence& sequence : batch.sequences) sequence.blocks = in.get_vector<int32_t>();
  batch.logit_rows = in.get_vector<int32_t>();
  batch.aux_layers = in.get_vector<int32_t>();
  batch.scratch_blocks = in.get_vector<int32_t>();
  in.expect_end();
  check_batch(batch);
  return batch;
}

}  // namespace invar
