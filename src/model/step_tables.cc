#include "model/step_tables.h"

#include <algorithm>

namespace invar {

template <typename T>
const T* StepTableBuilder::publish(StepArray<T>& array, std::span<const T> values, Device& device) {
  const std::span<T> host = array.prepare(device, values.size());
  std::copy(values.begin(), values.end(), host.begin());
  return array.publish(values.size());
}

StepTables StepTableBuilder::build(const Batch& batch, int page_places, Device& device) {
  placement_.build(batch.rows, batch.sequences, batch.scratch_pages, page_places);

  const size_t rows = batch.rows.size();
  const auto tokens = tokens_.prepare(device, rows), positions = positions_.prepare(device, rows);
  for (size_t t = 0; t < rows; ++t) {
    tokens[t] = batch.rows[t].token;
    positions[t] = batch.rows[t].position;
  }

  const int32_t* pages = publish(table_pages_, placement_.table_pages(), device);
  const auto begins = placement_.table_begin();
  const auto tables = tables_.prepare(device, begins.size());
  for (size_t i = 0; i < begins.size(); ++i) tables[i] = pages + begins[i];

  return {.tokens = tokens_.publish(rows),
          .positions = positions_.publish(rows),
          .logit_rows = publish(logit_rows_, std::span<const int32_t>(batch.logit_rows), device),
          .write_begin = publish(write_begin_, placement_.write_begin(), device),
          .write_page = publish(write_page_, placement_.write_page(), device),
          .write_place = publish(write_place_, placement_.write_place(), device),
          .table_of = publish(table_of_, placement_.table_of(), device),
          .tables = tables_.publish(begins.size()),
          .copies = publish(copies_, placement_.copies(), device),
          .num_copies = std::ssize(placement_.copies())};
}

}  // namespace invar
