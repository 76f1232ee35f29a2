// The tables by which a GPU's kernels find the adapters of a step (kernels/adapters.h). They lie at
// the same addresses from step to step, so that a recorded step is good for other adapters.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "model/adapter_weights.h"
#include "model/step_upload.h"

namespace invar {

class AdapterTableBuilder {
 public:
  // These weights, or nothing, stand in a slot from now on. It waits for the steps before.
  void put(const Decoder& decoder, int32_t slot, const AdapterWeights* weights);

  // The rows of a step that have the adapter of one slot.
  struct RowsOfSlot {
    int32_t slot;
    std::span<const RowRun> runs;
  };
  // Puts the copy of the tables of a step of `rows` rows into the stream.
  void build(const Decoder& decoder, std::span<const RowsOfSlot> adapted, int64_t rows);

  // Those of the step, beside no product: all that a recorded step depends on.
  const AdapterTables& tables() const { return tables_; }
  // Beside w, of adapters of at most this rank. Without slots: none has been beside it.
  AdapterTables beside(const Matrix& w, int64_t most_rank) const;

 private:
  void add_products(const AdapterWeights& weights);
  void make(const Decoder& decoder);
  void write(int64_t slot);
  void place_rows(std::span<const RowsOfSlot> adapted, std::span<int32_t> rows,
                  std::span<AdapterTile> tiles) const;

  struct Product {
    int64_t number;
    int32_t tensors = 0;  // the most of an adapter so far
  };
  std::map<const void*, Product> products_;     // by where the matrix is
  std::vector<const AdapterWeights*> weights_;  // by slot
  std::vector<AdapterSlot> host_slots_;         // [slot][product]
  DeviceArray<AdapterSlot> slots_;
  StepUpload upload_;
  AdapterTables tables_;
};

}  // namespace invar
