#include "model/step_tables.h"

namespace invar {

size_t StepTableBuilder::bytes_of(const Batch& batch) const {
  const size_t rows = batch.rows.size();
  size_t bytes = StepUpload::bytes_of<PlaceCopy>(placement_.copies().size()) +
                 StepUpload::bytes_of<const int32_t*>(placement_.table_begin().size());
  for (const size_t count :
       {rows, rows, placement_.table_of().size(), placement_.write_begin().size(),
        placement_.write_page().size(), placement_.write_place().size(), batch.logit_rows.size(),
        placement_.table_pages().size()})
    bytes += StepUpload::bytes_of<int32_t>(count);
  return bytes;
}

// What grows with a sequence's length comes last, so that nothing else moves with it.
StepTables StepTableBuilder::build(const Batch& batch, int page_places, const Execution& on) {
  placement_.build(batch.rows, batch.sequences, batch.scratch_pages, page_places);
  upload_.begin(on, bytes_of(batch));

  const size_t rows = batch.rows.size();
  const auto tokens = upload_.take<int32_t>(rows), positions = upload_.take<int32_t>(rows);
  for (size_t t = 0; t < rows; ++t) {
    tokens.host[t] = batch.rows[t].token;
    positions.host[t] = batch.rows[t].position;
  }
  StepTables tables{.tokens = tokens.device,
                    .positions = positions.device,
                    .logit_rows = upload_.put(std::span<const int32_t>(batch.logit_rows)),
                    .write_begin = upload_.put(placement_.write_begin()),
                    .write_page = upload_.put(placement_.write_page()),
                    .write_place = upload_.put(placement_.write_place()),
                    .table_of = upload_.put(placement_.table_of()),
                    .copies = upload_.put(placement_.copies()),
                    .num_copies = std::ssize(placement_.copies())};
  const auto begins = placement_.table_begin();
  const auto table = upload_.take<const int32_t*>(begins.size());
  const int32_t* pages = upload_.put(placement_.table_pages());
  for (size_t i = 0; i < begins.size(); ++i) table.host[i] = pages + begins[i];
  tables.tables = table.device;
  upload_.send(on);
  return tables;
}

}  // namespace invar
