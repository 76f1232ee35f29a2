#include "model/step_tables.h"

#include <algorithm>

#include "base/check.h"

namespace invar {

StepTables StepTableBuilder::build(const Batch& batch, int page_places, Device& device) {
  const size_t rows = batch.rows.size();
  const auto tokens = tokens_.prepare(device, rows), positions = positions_.prepare(device, rows);
  const auto table_of = table_of_.prepare(device, rows);
  const auto write_begin = write_begin_.prepare(device, rows + 1);
  const auto write_page = write_page_.prepare(device, rows);
  const auto write_place = write_place_.prepare(device, rows);
  const auto logit_rows = logit_rows_.prepare(device, batch.logit_rows.size());
  std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), logit_rows.begin());

  size_t pages = 0;
  for (const BatchSequence& sequence : batch.sequences) pages += sequence.pages.size();
  const auto table_pages = table_pages_.prepare(device, pages);
  auto next = table_pages.begin();
  for (const BatchSequence& sequence : batch.sequences)
    next = std::copy(sequence.pages.begin(), sequence.pages.end(), next);
  const int32_t* page = table_pages_.publish(pages);
  const auto tables = tables_.prepare(device, batch.sequences.size());
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    tables[s] = page;
    page += batch.sequences[s].pages.size();
  }

  for (size_t t = 0; t < rows; ++t) {
    const BatchRow& row = batch.rows[t];
    const auto& own = batch.sequences[row.sequence].pages;
    CHECK(row.position / page_places < std::ssize(own), "a row beyond its sequence's pages");
    tokens[t] = row.token;
    positions[t] = row.position;
    table_of[t] = row.sequence;
    write_begin[t] = static_cast<int32_t>(t);
    write_page[t] = own[row.position / page_places];
    write_place[t] = row.position % page_places;
  }
  write_begin[rows] = static_cast<int32_t>(rows);

  return {.tokens = tokens_.publish(rows),
          .positions = positions_.publish(rows),
          .logit_rows = logit_rows_.publish(batch.logit_rows.size()),
          .write_begin = write_begin_.publish(rows + 1),
          .write_page = write_page_.publish(rows),
          .write_place = write_place_.publish(rows),
          .table_of = table_of_.publish(rows),
          .tables = tables_.publish(batch.sequences.size())};
}

}  // namespace invar
