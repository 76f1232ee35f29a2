// The adapters that a runner has in its slots, and which rows of a step have which of them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/adapter_tables.h"
#include "model/adapter_weights.h"
#include "model/batch.h"

namespace invar {

// A recorded step depends on this of the adapters of its rows.
struct AdapterShape {
  AdapterTables tables;
  std::vector<int32_t> targets;  // AdapterStep, sets of matrices, ascending
  int64_t rank = 0;
  const float *sums = nullptr, *pair_products = nullptr, *added = nullptr;
  bool operator==(const AdapterShape&) const = default;
};

class AdapterStep {
 public:
  // Bytes of activations that steps with adapters of this rank take at most on a rank.
  static int64_t most_bytes(const DecoderSpec& spec, AdapterUser user, int64_t rows, int64_t rank);
  // Takes in what comes with a batch, and whose rows are whose. An adapter that cannot be read, or
  // is another one than the batch says, leaves its slot broken: its rows become NaN, so that their
  // requests fail and no others.
  void begin(const Decoder& decoder, const Batch& batch, int max_rows);
  // An adapter that is in memory comes into a slot.
  void put(const Decoder& decoder, int32_t slot, int32_t rank,
           std::shared_ptr<const AdapterWeights> weights);
  // Whether no row has an adapter. It is the same on every rank.
  bool is_empty() const { return used().empty(); }
  // Whether some row's adapter has something for the product of `w` on this rank.
  bool is_beside(const Matrix& w) const;
  // Rows of broken slots become NaN. A step that has some is not recorded.
  bool has_broken() const;
  void poison(const Decoder& decoder, float* hidden);
  // Empty where no row has an adapter.
  AdapterShape shape() const;

  // The addition to a product: see AdapterParams. The memory is good for any of them, in turn.
  // Where ranks share a product's inner size, every rank has the same stride.
  AdapterParams params(const Matrix& w, bool is_shared);
  // The same beside every matrix of a stack, or gated pair of one, on a host: rows [begin[i],
  // begin[i + 1]) of its activations go through the i-th; row j of them belongs to row rows_of[j]
  // of the step.
  AdapterParams params_of_experts(const Decoder& decoder, const Matrix& stack, int64_t size,
                                  const int32_t* begin, const int32_t* rows_of);
  // Room for the products of a gated pair: [T][columns].
  float* pair_products(const Decoder& decoder, int64_t rows, int64_t columns);
  // Room for what is added to the residual stream.
  float* added(const Decoder& decoder, int64_t rows);

 private:
  // The matrices that an adapter stands beside, ascending. Many adapters have the same ones.
  using Targets = std::vector<const void*>;
  struct Slot {
    AdapterLoad load;
    std::shared_ptr<const AdapterWeights> weights;  // null: broken
    int32_t targets = -1;                           // which set
  };
  struct Used {
    const Slot* slot;
    std::vector<RowRun> runs;
    int64_t rows = 0;
  };
  void load(const Decoder& decoder, const AdapterLoad& load);
  void fill(const Decoder& decoder, Slot& slot, std::shared_ptr<const AdapterWeights> weights);
  Slot& slot_at(int32_t number);
  int32_t set_of(const AdapterWeights& weights);
  void find_rows(const Batch& batch);
  void find_targets();
  void build_tables(const Decoder& decoder, int64_t rows);
  void take_memory(const Decoder& decoder);
  void add_groups_of_expert(const Matrix& w, int32_t begin, int32_t end, const int32_t* rows_of);
  AdapterGroup group_of(const AdapterWeights::Product& product) const;
  AdapterParams params_of_groups(int64_t width) const;
  AdapterParams params_on_device(const Matrix& w, bool is_shared) const;
  // Memory for so many rows; on a device for more of them, so that it seldom changes its place.
  float* room(DeviceArray<float>& of, const Decoder& decoder, int64_t rows, int64_t columns) const;

  std::span<const Used> used() const { return std::span(used_).first(num_used_); }
  Used& use(int32_t slot);

  std::vector<Slot> slots_;
  std::vector<Used> used_;  // by the step, the first ones; the others keep their memory
  size_t num_used_ = 0;
  std::vector<Targets> sets_;
  std::vector<int32_t> targets_;      // sets of the step, ascending
  std::vector<AdapterGroup> groups_;  // of the last params; on a host
  std::vector<RowRun> runs_;          // of groups beside experts
  std::vector<int32_t> used_of_row_;  // of used_; -1: none
  AdapterTableBuilder tables_;        // on a device
  std::vector<AdapterTableBuilder::RowsOfSlot> rows_of_slots_;
  DeviceArray<float> sums_, pair_products_, added_, expert_sums_;
  DeviceArray<std::byte> inner_, expert_inner_;
  DeviceArray<float> nan_;  // a row of a broken slot, on a device
  DType type_ = DType::bf16;
  bool is_on_host_ = true;
  int max_rows_ = 0;
  int64_t rank_ = 0;  // the largest so far
};

}  // namespace invar
