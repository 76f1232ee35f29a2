// Where the rows of a batch leave what layers with a state need of them: layers that keep nothing
// of old positions, and whose state moves at multiples of 64 positions alone.
//
// A sequence has a cell: the chunk, which holds what its rows since the last boundary left, and the
// state at that boundary. Trunk rows write to it; of a piece that crosses boundaries the last chunk
// is the sequence's own and those before it are scratch. Every root-to-leaf path of drafts has
// scratch chunks, as it has scratch blocks for keys (kv/placement.h), and a draft in a chunk's last
// slot leaves its state in a scratch cell. So a draft that is refused has changed nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/layout.h"
#include "kv/placement.h"
#include "kv/state_shape.h"

namespace invar {

inline constexpr int32_t kBoundary = 64;  // positions from one state to the next

ScratchCells scratch_cells_needed(std::span<const BatchRow> rows);

class CellPlacement {
 public:
  // Scratch cells are [first.chunks, ...) and [first.states, ...).
  // REQUIRES: what Placement::build does, and that every sequence has a cell.
  void build(std::span<const BatchRow> rows, std::span<const BatchSequence> sequences,
             ScratchCells first);

  // All of these are valid until the next build.

  // Copies of chunks, to be done in every layer before anything is written.
  std::span<const CellCopy> copies() const { return copies_; }
  // Rows of sequence i of the batch, of those that have any, are sequence_begin[i] ..
  // sequence_begin[i + 1].
  std::span<const int32_t> sequence_begin() const { return sequence_begin_; }
  // Row t leaves what it leaves in elements write_begin[t] .. write_begin[t + 1] of write_cell, at
  // its slot of each.
  std::span<const int32_t> write_begin() const { return chunks_.write_begin(); }
  std::span<const int32_t> write_cell() const { return chunks_.write_block(); }
  // Row t reads the chunk table_cells[table_begin[table_of[t]] + its position / 64].
  std::span<const int32_t> table_of() const { return chunks_.table_of(); }
  std::span<const int32_t> table_begin() const { return chunks_.table_begin(); }
  std::span<const int32_t> table_cells() const { return chunks_.table_blocks(); }
  // The state that row t reads, or -1 in a sequence's first chunk.
  std::span<const int32_t> state_of() const { return state_of_; }
  // The state of a row in the chunk that its sequence's first row here is in: what came before that
  // chunk stands there. -1, of a row in a later chunk: it stands in the chunks of the row's table.
  std::span<const int32_t> before_of() const { return before_of_; }
  // Where a row in a chunk's last slot leaves the next state; -1: the row is not there.
  std::span<const int32_t> next_state() const { return next_state_; }

  // Accepts the draft path that ends in row `last`: appends the copies that bring its chunk and
  // state to the sequence's cell. Accepting a trunk row needs none. To be done before the scratch
  // cells are used again.
  void accept(std::span<const BatchRow> rows, int32_t last, int32_t cell,
              std::vector<CellCopy>& chunks, std::vector<CellCopy>& states) const;

 private:
  void place_trunks(std::span<const BatchRow> rows, std::span<const BatchSequence> sequences,
                    int32_t& scratch);
  void place_states(std::span<const BatchRow> rows, std::span<const BatchSequence> sequences,
                    int32_t scratch);

  Placement chunks_;
  std::vector<BatchSequence> tables_;  // of the sequences: their cells by chunk
  std::vector<int32_t> path_cells_;
  std::vector<CellCopy> copies_;
  std::vector<int32_t> sequence_begin_, state_of_, before_of_, next_state_;
};

}  // namespace invar
