#include "model/chosen_slots.h"

#include <numeric>

namespace invar {

ChosenSlots::ChosenSlots(Device& device, const DecoderSpec& spec, int max_rows)
    : most_(find_indexer(spec)->most),
      scores_stride_(round_up(spec.max_positions, kSplitSlots)),
      kv_{.block_size = 128, .kv_heads = 1, .head_dim = spec.head_dim} {
  const char* what = "the slots that rows choose";
  const int blocks = (most_ + kv_.block_size - 1) / kv_.block_size;
  const size_t keys = static_cast<size_t>(kRows * blocks * kv_.key_block());
  const size_t values = static_cast<size_t>(kRows * blocks * kv_.value_block());
  chosen_ = {device, static_cast<size_t>(max_rows) * static_cast<size_t>(most_), what};
  scores_ = {device, static_cast<size_t>(kRows * scores_stride_), what};
  gathered_ = {device, keys + values, what};
  kv_.keys = gathered_.data();
  kv_.values = gathered_.data() + keys;
  positions_.assign(kRows, most_ - 1);
  table_of_.resize(kRows);
  std::iota(table_of_.begin(), table_of_.end(), 0);
  blocks_.resize(static_cast<size_t>(kRows * blocks));
  std::iota(blocks_.begin(), blocks_.end(), 0);
  for (int row = 0; row < kRows; ++row) tables_.push_back(blocks_.data() + row * blocks);
}

size_t ChosenSlots::bytes() const {
  return chosen_.size() * sizeof(int32_t) + scores_.size() * sizeof(float) +
         gathered_.size() * sizeof(bf16_t);
}

}  // namespace invar
