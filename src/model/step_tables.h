// The row tables of one step, made from a batch: which slot every row writes and which block table
// it reads.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "kernels/inference.h"
#include "kv/cell_placement.h"
#include "model/batch.h"
#include "model/shared_prefixes.h"
#include "model/step_upload.h"

namespace invar {

// Device addresses, valid until the next build. Those of a batch with as many rows, logit rows,
// tables and writes, and no copies, are the same as long as the tables fit into the memory that was
// there.
// The same of layers with a state: see kv/cell_placement.h.
struct CellTables {
  const int32_t* write_begin = nullptr;  // [T + 1]
  const int32_t* write_cell = nullptr;
  const int32_t* table_of = nullptr;  // [T]
  const int32_t* const* tables = nullptr;
  const int32_t* sequence_begin = nullptr;  // [sequences + 1]
  int32_t sequences = 0;
  const int32_t* state_of = nullptr;    // [T]
  const int32_t* before_of = nullptr;   // [T]
  const int32_t* next_state = nullptr;  // [T]
  const CellCopy* copies = nullptr;     // of chunks, before anything is written
  int64_t num_copies = 0;

  bool operator==(const CellTables&) const = default;
};

// The slots that rows see where attention is in both directions, in layers of one window (0: none).
struct SeenSlots {
  int window = 0;
  const int32_t *first = nullptr, *last = nullptr;  // [T] each

  bool operator==(const SeenSlots&) const = default;
};

struct StepTables {
  int32_t* tokens = nullptr;             // [T]; < 0: see ForwardIo::sampled
  const int32_t* positions = nullptr;    // [T]
  const int32_t* rotations = nullptr;    // [T]: rotation_of each row
  const int32_t* logit_rows = nullptr;   // [logit rows]
  const int32_t* write_begin = nullptr;  // [T + 1]; see QkvParams
  const int32_t* write_block = nullptr;
  const int32_t* write_slot = nullptr;
  const int32_t* table_of = nullptr;  // [T]; see AttentionParams
  const int32_t* const* tables = nullptr;
  const SlotCopy* copies = nullptr;  // to be done in every layer before anything is written
  int64_t num_copies = 0;
  // The fewest and most of all rows that read one table: AttentionParams.
  int32_t fewest_rows = 1, most_rows = 1;
  const int32_t* few_rows = nullptr;  // [1 + T]
  // Whether every row is of another sequence, so that none reads the key or value of another one.
  bool rows_are_apart = false;
  bool rows_are_even = false;       // AttentionParams
  bool contexts_are_short = false;  // no row sees more than kShortContext slots
  const SharedPrefix* shared = nullptr;
  const int32_t* shared_splits = nullptr;  // [T]
  int32_t num_shared = 0;
  CellTables cells;             // where layers have states
  std::vector<SeenSlots> seen;  // where attention is in both directions

  bool operator==(const StepTables&) const = default;
};

class StepTableBuilder {
 public:
  // From now on steps say what rows of so many key elements share, for a device that reads that
  // once.
  void find_shared(int64_t key_width) {
    shared_ = SharedPrefixes(SharedPrefixes::fewest_rows(key_width));
    finds_shared_ = true;
  }
  // From now on rows see what stands behind them, too, in layers of these windows: a batch has all
  // rows of each of its texts.
  void see_ahead(std::vector<int> windows) { windows_ahead_ = std::move(windows); }
  // Puts the copy of the tables into the stream. `cells`: sequences have so many, and scratch ones
  // stand behind them; 0: no layer has a state.
  StepTables build(const Batch& batch, int block_size, const Execution& on, int cells = 0);
  // How the last batch was placed; also says what accepting a draft path takes.
  const Placement& placement() const { return placement_; }
  const CellPlacement& cell_placement() const { return cell_placement_; }

 private:
  size_t bytes_of(const Batch& batch) const;
  size_t bytes_of_cells() const;
  CellTables put_cells();
  void put_seen(const Batch& batch, std::vector<SeenSlots>& seen);

  Placement placement_;
  CellPlacement cell_placement_;
  SharedPrefixes shared_;
  bool finds_shared_ = false;
  std::vector<int> windows_ahead_;
  StepUpload upload_;
};

}  // namespace invar
