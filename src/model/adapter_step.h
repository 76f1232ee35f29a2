// The adapters that a runner has in its slots, and which rows of a step have which of them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/adapter_weights.h"
#include "model/batch.h"

namespace invar {

class AdapterStep {
 public:
  // Takes in what comes with a batch, and whose rows are whose. An adapter that cannot be read, or
  // is another one than the batch says, leaves its slot broken: its rows become NaN, so that their
  // requests fail and no others.
  void begin(const Decoder& decoder, const Batch& batch, int max_rows);
  // An adapter that is in memory comes into a slot.
  void put(int32_t slot, int32_t rank, std::shared_ptr<const AdapterWeights> weights);
  // Whether no row has an adapter. It is the same on every rank.
  bool is_empty() const { return used().empty(); }
  // Whether some row's adapter has something for the product of `w` on this rank.
  bool is_beside(const Matrix& w) const;
  // Rows of broken slots become NaN.
  void poison(float* hidden, int64_t width) const;

  // The addition to a product: see AdapterParams. The memory is good for any of them, in turn.
  // Where ranks share a product's inner size, every rank has the same stride.
  AdapterParams params(const Matrix& w, bool is_shared);
  // Room for the products of a gated pair: [T][2 * round_up(F, 16)].
  float* pair_products(const Decoder& decoder, int64_t rows, int64_t columns);
  // Room for what is added to the residual stream.
  float* added(const Decoder& decoder, int64_t rows);

 private:
  struct Slot {
    AdapterLoad load;
    std::shared_ptr<const AdapterWeights> weights;  // null: broken
  };
  struct Used {
    const Slot* slot;
    std::vector<RowRun> runs;
    int64_t rows = 0;
  };
  void load(const Decoder& decoder, const AdapterLoad& load);
  Slot& slot_at(int32_t number);
  void take_memory(const Decoder& decoder, int max_rows);

  std::span<const Used> used() const { return std::span(used_).first(num_used_); }
  Used& use(int32_t slot);

  std::vector<Slot> slots_;
  std::vector<Used> used_;  // by the step, the first ones; the others keep their memory
  size_t num_used_ = 0;
  std::vector<AdapterGroup> groups_;  // of the last params
  DeviceArray<float> sums_, pair_products_, added_;
  DeviceArray<std::byte> inner_;
  DType type_ = DType::bf16;
  int64_t width_ = 0;  // of the widest A
};

}  // namespace invar
