// Tools for parts that leave a state of each sequence in cells.
#pragma once

#include "kernels/recurrent.h"
#include "model/parts/part_of.h"

namespace invar {

static_assert(kChunkSlots == kBoundary, "a chunk of the kernels is what a cell holds");

// A part that leaves a state.
template <typename Weights, typename Activations>
class PartWithState : public PartOf<Weights, Activations> {
 public:
  using PartOf<Weights, Activations>::PartOf;
  const char* refusal() const override {
    return this->model_.residual_scale == 1
               ? nullptr
               : "its residual stream is scaled, whose gradient is not implemented";
  }
};

// Memory of a sequence: arrays of a cell, one after the other.
class CellArrays {
 public:
  explicit CellArrays(const Cells& cells = {}) : cells_(cells) {}
  Cells take(int64_t bytes) {
    const Cells array{cells_.data ? cells_.at<char>(0) + taken_ : nullptr, cells_.bytes};
    taken_ += round_up(bytes, 64);
    return array;
  }
  int64_t taken() const { return taken_; }

 private:
  Cells cells_;
  int64_t taken_ = 0;
};

// The bytes of a sequence's cells that `take(chunks, states, type)` takes, where keys are bf16 and
// f32.
template <typename Take>
StateShape cells_of(Take take) {
  CellArrays chunks, states, f32_chunks, f32_states;
  take(chunks, states, DType::bf16);
  take(f32_chunks, f32_states, DType::f32);
  return {.chunk_bytes = chunks.taken(),
          .state_bytes = states.taken(),
          .f32_chunk_bytes = f32_chunks.taken(),
          .f32_state_bytes = f32_states.taken()};
}

// Where rows stand among the cells of sequences.
inline RowPlaces places_of(const PartPass& p) {
  const StepTables& tables = p.ops.tables();
  return {.rows = p.rows,
          .positions = tables.positions,
          .table_of = tables.cells.table_of,
          .tables = tables.cells.tables,
          .write_begin = tables.cells.write_begin,
          .write_cell = tables.cells.write_cell};
}

// Before anything of the layer is written: chunks that paths share, to scratch ones.
inline void copy_chunks(const PartPass& p) {
  const CellTables& cells = p.ops.tables().cells;
  if (cells.num_copies > 0)
    p.ops.run("copy_cells", p.ops.kernels().copy_cells,
              CopyCellsParams{p.chunks, cells.copies, cells.num_copies});
}

// Elements from the gradient of one tap's weights to that of the next.
inline int64_t tap_step(int64_t channels) {
  return round_up(channels, kPanelWidth);
}

// The taps of a convolution, each a vector of channels: all of them are on every rank.
inline Each every_tap(int taps) {
  Each each{taps, std::vector<int32_t>(static_cast<size_t>(taps))};
  for (int tap = 0; tap < taps; ++tap) each.here[static_cast<size_t>(tap)] = tap;
  return each;
}

}  // namespace invar
