#include "model/step_tables.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "kernels/at_once.h"

namespace invar {

size_t StepTableBuilder::bytes_of(const Batch& batch) const {
  const size_t rows = batch.rows.size();
  size_t bytes = StepUpload::bytes_of<SlotCopy>(placement_.copies().size()) +
                 StepUpload::bytes_of<SharedPrefix>(SharedPrefixes::most_prefixes(rows)) +
                 StepUpload::bytes_of<const int32_t*>(placement_.table_begin().size());
  for (const size_t count :
       {rows, rows, rows, rows, rows + 1, placement_.table_of().size(),
        placement_.write_begin().size(), placement_.write_block().size(),
        placement_.write_slot().size(), batch.logit_rows.size(), placement_.table_blocks().size()})
    bytes += StepUpload::bytes_of<int32_t>(count);
  return bytes + 2 * windows_ahead_.size() * StepUpload::bytes_of<int32_t>(rows);
}

// A row sees the whole of its text, or what is nearer than the window.
void StepTableBuilder::put_seen(const Batch& batch, std::vector<SeenSlots>& seen) {
  const auto& rows = batch.rows;
  std::vector<int32_t> ends(rows.size());
  for (size_t t = rows.size(); t-- > 0;) {
    const bool is_last = t + 1 == rows.size() || rows[t + 1].sequence != rows[t].sequence;
    ends[t] = is_last ? rows[t].position : ends[t + 1];
    const bool is_first = t == 0 || rows[t - 1].sequence != rows[t].sequence;
    if (is_first && rows[t].position != 0)
      fail(
          "attention in both directions: expected a step to have the whole of a text, found one "
          "from position {} on",
          rows[t].position);
  }
  for (const int window : windows_ahead_) {
    const auto first = upload_.take<int32_t>(rows.size()),
               last = upload_.take<int32_t>(rows.size());
    const int32_t reach = window > 0 ? window - 1 : INT32_MAX / 2;
    for (size_t t = 0; t < rows.size(); ++t) {
      first.host[t] = std::max(0, rows[t].position - reach);
      last.host[t] = std::min(ends[t], rows[t].position + reach);
    }
    seen.push_back({window, first.device, last.device});
  }
}

size_t StepTableBuilder::bytes_of_cells() const {
  const CellPlacement& p = cell_placement_;
  size_t bytes = StepUpload::bytes_of<CellCopy>(p.copies().size()) +
                 StepUpload::bytes_of<const int32_t*>(p.table_begin().size());
  for (const auto list : {p.write_begin(), p.write_cell(), p.table_of(), p.sequence_begin(),
                          p.state_of(), p.before_of(), p.next_state(), p.table_cells()})
    bytes += StepUpload::bytes_of<int32_t>(list.size());
  return bytes;
}

CellTables StepTableBuilder::put_cells() {
  const CellPlacement& p = cell_placement_;
  CellTables cells{.write_begin = upload_.put(p.write_begin()),
                   .write_cell = upload_.put(p.write_cell()),
                   .table_of = upload_.put(p.table_of()),
                   .sequence_begin = upload_.put(p.sequence_begin()),
                   .sequences = static_cast<int32_t>(p.sequence_begin().size()) - 1,
                   .state_of = upload_.put(p.state_of()),
                   .before_of = upload_.put(p.before_of()),
                   .next_state = upload_.put(p.next_state()),
                   .copies = upload_.put(p.copies()),
                   .num_copies = std::ssize(p.copies())};
  const auto table = upload_.take<const int32_t*>(p.table_begin().size());
  const int32_t* all = upload_.put(p.table_cells());
  for (size_t i = 0; i < p.table_begin().size(); ++i) table.host[i] = all + p.table_begin()[i];
  cells.tables = table.device;
  return cells;
}

namespace {

// AttentionParams' bounds of the rows of one table, the fewest and the most, and the rows of tables
// of few, whose number comes first.
std::pair<int32_t, int32_t> rows_of_tables(std::span<const int32_t> table_of,
                                           std::span<int32_t> few_rows) {
  int32_t fewest = INT32_MAX, most = 1, begin = 0, few = 0;
  for (int32_t t = 0; t < std::ssize(table_of); ++t) {
    if (t + 1 < std::ssize(table_of) && table_of[t + 1] == table_of[t]) continue;
    const int32_t count = t + 1 - begin;
    fewest = std::min(fewest, count);
    most = std::max(most, count);
    for (; begin <= t; ++begin)
      if (count < kManyRows) few_rows[++few] = begin;
  }
  few_rows[0] = few;
  return {std::min(fewest, most), most};
}

// The longest row is what all take where none is cut: half a split more than the mean and 1/16 of
// it are less than what it costs to cut rows. Splits that are computed with other rows' don't
// count.
bool are_even(std::span<const int32_t> positions, std::span<const int32_t> shared_splits) {
  int64_t slots = 0, longest = 0;
  for (size_t t = 0; t < positions.size(); ++t) {
    const int64_t own = positions[t] + 1 - shared_splits[t] * kSplitSlots;
    slots += own;
    longest = std::max(longest, own);
  }
  const int64_t rows = std::ssize(positions);
  return longest * rows * 16 <= slots * 17 + rows * 16 * kSplitSlots / 2;
}

}  // namespace

// Tables that grow with a sequence's length come last, so that nothing else moves with them.
StepTables StepTableBuilder::build(const Batch& batch, int block_size, const Execution& on,
                                   int cells) {
  placement_.build(batch.rows, batch.sequences, batch.scratch_blocks, block_size);
  if (cells > 0) cell_placement_.build(batch.rows, batch.sequences, {cells, cells});
  upload_.begin(on, bytes_of(batch) + (cells > 0 ? bytes_of_cells() : 0));

  const size_t rows = batch.rows.size();
  const auto tokens = upload_.take<int32_t>(rows), positions = upload_.take<int32_t>(rows),
             rotations = upload_.take<int32_t>(rows);
  for (size_t t = 0; t < rows; ++t) {
    tokens.host[t] = batch.rows[t].token;
    positions.host[t] = batch.rows[t].position;
    rotations.host[t] = rotation_of(batch.rows[t]);
  }
  StepTables tables{.tokens = tokens.device,
                    .positions = positions.device,
                    .rotations = rotations.device,
                    .logit_rows = upload_.put(std::span<const int32_t>(batch.logit_rows)),
                    .write_begin = upload_.put(placement_.write_begin()),
                    .write_block = upload_.put(placement_.write_block()),
                    .write_slot = upload_.put(placement_.write_slot()),
                    .table_of = upload_.put(placement_.table_of()),
                    .copies = upload_.put(placement_.copies()),
                    .num_copies = std::ssize(placement_.copies())};
  const auto few_rows = upload_.take<int32_t>(rows + 1);
  std::tie(tables.fewest_rows, tables.most_rows) =
      rows_of_tables(placement_.table_of(), few_rows.host);
  tables.few_rows = few_rows.device;
  tables.rows_are_apart =
      std::ranges::adjacent_find(batch.rows, {}, &BatchRow::sequence) == batch.rows.end();
  const auto single = few_rows.host.subspan(1, static_cast<size_t>(few_rows.host[0]));
  shared_.find(placement_, finds_shared_ ? single : single.first(0), positions.host, block_size);
  const auto shared = upload_.take<SharedPrefix>(SharedPrefixes::most_prefixes(rows));
  std::ranges::copy(shared_.prefixes(), shared.host.begin());
  tables.shared = shared.device;
  tables.num_shared = static_cast<int32_t>(shared_.prefixes().size());
  tables.shared_splits = upload_.put(shared_.splits());
  tables.rows_are_even = are_even(positions.host, shared_.splits());
  tables.contexts_are_short =
      std::ranges::all_of(positions.host, [](int32_t at) { return at < kShortContext; });
  const auto begins = placement_.table_begin();
  const auto table = upload_.take<const int32_t*>(begins.size());
  const int32_t* blocks = upload_.put(placement_.table_blocks());
  for (size_t i = 0; i < begins.size(); ++i) table.host[i] = blocks + begins[i];
  tables.tables = table.device;
  if (!windows_ahead_.empty()) put_seen(batch, tables.seen);
  if (cells > 0) tables.cells = put_cells();
  upload_.send(on);
  return tables;
}

}  // namespace invar
