#include "kv/cell_placement.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace invar {

namespace {

int32_t chunk_of(const BatchRow& row) {
  return row.position / kBoundary;
}
int32_t slot_of(const BatchRow& row) {
  return row.position % kBoundary;
}
bool is_last_slot(const BatchRow& row) {
  return slot_of(row) == kBoundary - 1;
}

// Calls `use` with the first and the last trunk row of each sequence in turn.
template <typename Use>
void for_each_trunk(std::span<const BatchRow> rows, Use use) {
  for (size_t t = 0; t < rows.size();) {
    const size_t first = t;
    size_t last = t;
    for (; t < rows.size() && rows[t].sequence == rows[first].sequence; ++t)
      if (!is_draft(rows[t])) last = t;
    use(rows[first], rows[last]);
  }
}

}  // namespace

ScratchCells scratch_cells_needed(std::span<const BatchRow> rows) {
  ScratchCells needed{.chunks = scratch_blocks_needed(rows, kBoundary)};
  for_each_trunk(rows, [&](const BatchRow& first, const BatchRow& last) {
    needed.chunks += chunk_of(last) - chunk_of(first);
  });
  for (const BatchRow& row : rows) needed.states += is_draft(row) && is_last_slot(row);
  return needed;
}

void CellPlacement::build(std::span<const BatchRow> rows, std::span<const BatchSequence> sequences,
                          ScratchCells first) {
  copies_.clear();
  place_trunks(rows, sequences, first.chunks);
  path_cells_.resize(static_cast<size_t>(scratch_blocks_needed(rows, kBoundary)));
  std::iota(path_cells_.begin(), path_cells_.end(), first.chunks);
  chunks_.build(rows, tables_, path_cells_, kBoundary);
  for (const SlotCopy& copy : chunks_.copies()) copies_.push_back({copy.from, copy.to});
  place_states(rows, sequences, first.states);
}

// A piece that leaves the chunk it begins in takes that one along to a scratch chunk, since its
// last rows need the sequence's own.
void CellPlacement::place_trunks(std::span<const BatchRow> rows,
                                 std::span<const BatchSequence> sequences, int32_t& scratch) {
  tables_.resize(sequences.size());
  for_each_trunk(rows, [&](const BatchRow& first, const BatchRow& last) {
    const int32_t own = sequences[first.sequence].cell;
    CHECK(own >= 0, "a sequence without a cell in a model whose layers have states");
    std::vector<int32_t>& table = tables_[first.sequence].blocks;
    table.assign(static_cast<size_t>(chunk_of(last)) + 1, own);
    for (int32_t chunk = chunk_of(first); chunk < chunk_of(last); ++chunk)
      table[static_cast<size_t>(chunk)] = scratch++;
    if (chunk_of(first) < chunk_of(last) && slot_of(first) > 0)
      copies_.push_back({own, table[static_cast<size_t>(chunk_of(first))]});
  });
}

// The state moves in its place along the trunk: no row behind a boundary reads the one before it.
void CellPlacement::place_states(std::span<const BatchRow> rows,
                                 std::span<const BatchSequence> sequences, int32_t scratch) {
  state_of_.resize(rows.size());
  before_of_.resize(rows.size());
  next_state_.resize(rows.size());
  sequence_begin_.clear();
  for (size_t t = 0; t < rows.size(); ++t) {
    const BatchRow& row = rows[t];
    if (t == 0 || rows[t - 1].sequence != row.sequence)
      sequence_begin_.push_back(static_cast<int32_t>(t));
    const int32_t own = sequences[row.sequence].cell;
    if (is_draft(row)) {
      const size_t parent = static_cast<size_t>(row.parent);
      state_of_[t] = slot_of(row) == 0 ? next_state_[parent] : state_of_[parent];
      next_state_[t] = is_last_slot(row) ? scratch++ : -1;
    } else {
      state_of_[t] = chunk_of(row) == 0 ? -1 : own;
      next_state_[t] = is_last_slot(row) ? own : -1;
    }
    const BatchRow& first = rows[static_cast<size_t>(sequence_begin_.back())];
    before_of_[t] = chunk_of(row) == chunk_of(first) ? state_of_[t] : -1;
  }
  sequence_begin_.push_back(static_cast<int32_t>(rows.size()));
}

void CellPlacement::accept(std::span<const BatchRow> rows, int32_t last, int32_t cell,
                           std::vector<CellCopy>& chunks, std::vector<CellCopy>& states) const {
  const BatchRow& row = rows[last];
  if (!is_draft(row)) return;
  const int32_t state = is_last_slot(row) ? next_state_[last] : state_of_[last];
  if (state >= 0 && state != cell) states.push_back({state, cell});
  if (is_last_slot(row)) return;  // the next row begins a chunk
  // Chunks before it are in the state, and the slots of this one before the path were copied to it.
  chunks.push_back({chunks_.table(last)[chunk_of(row)], cell});
}

}  // namespace invar
