// The indexer, numerics 4.6: one row and one slot at a time.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/reference/reference.h"

namespace invar::reference {

void store_index(const StoreIndexParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t e = 0; e < p.kv.index_dim; ++e) {
      const float key = p.keys[t * p.stride + e];
      if (!std::isfinite(key)) p.non_finite[t] = true;
      for (int32_t w = p.write_begin[t]; w < p.write_begin[t + 1]; ++w)
        p.kv.index_keys[p.kv.index_at(p.write_block[w], p.write_slot[w], e)] =
            f32_to_cached_bf16(key);
    }
}

template <Order order>
void index_scores(const IndexScoresParams& p, const Execution& on) {
  const int64_t width = p.kv.index_dim;
  bf16_t key[kMostIndexDim];
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const int32_t* table = p.tables[p.table_of[t]];
    for (int64_t slot = 0; slot <= p.positions[t]; ++slot) {
      const int64_t block = table[slot / p.kv.block_size], within = slot % p.kv.block_size;
      for (int64_t e = 0; e < width; ++e) key[e] = p.kv.index_keys[p.kv.index_at(block, within, e)];
      float score = 0;
      for (int32_t h = 0; h < p.heads; ++h) {
        const float d = orders::dot(order, p.q + t * p.q_stride + h * width, key, width);
        score = __builtin_fmaf(p.weights[t * p.weights_stride + h], d > 0 ? d : 0.0f, score);
      }
      p.scores[t * p.scores_stride + slot] = score + 0.0f;
    }
  }
}

void choose_slots(const ChooseSlotsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const float* scores = p.scores + t * p.scores_stride;
    // A NaN is less than every number.
    const auto is_higher = [&](int32_t a, int32_t b) {
      return std::isnan(scores[b]) ? !std::isnan(scores[a]) : scores[a] > scores[b];
    };
    std::vector<int32_t> slots(static_cast<size_t>(p.positions[t]) + 1);
    std::iota(slots.begin(), slots.end(), 0);
    std::ranges::stable_sort(slots, is_higher);
    std::sort(slots.begin(), slots.begin() + p.most);
    std::copy_n(slots.begin(), p.most, p.chosen + t * p.most);
  }
}

void gather_slots(const GatherSlotsParams& p, const Execution& on) {
  const int64_t leaves = round_up(p.most, kLeafPad);
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0; i < leaves; ++i) {
      const bool is_chosen = i < p.most;
      const int32_t slot = is_chosen ? p.chosen[t * p.most + i] : 0;
      const int64_t block = p.tables[p.table_of[t]][slot / p.from.block_size];
      const int64_t to_block = t * p.blocks() + i / p.to.block_size;
      for (int64_t e = 0; e < p.from.head_dim; ++e) {
        const int64_t key = p.from.key_index(block, 0, slot % p.from.block_size, e),
                      value = p.from.value_index(block, 0, slot % p.from.block_size, e);
        p.to.keys[p.to.key_index(to_block, 0, i % p.to.block_size, e)] =
            is_chosen ? p.from.keys[key] : bf16_t{};
        p.to.values[p.to.value_index(to_block, 0, i % p.to.block_size, e)] =
            is_chosen ? p.from.values[value] : bf16_t{};
      }
    }
}

template void index_scores<Order::portable>(const IndexScoresParams&, const Execution&);
template void index_scores<Order::hopper>(const IndexScoresParams&, const Execution&);
template void index_scores<Order::pair>(const IndexScoresParams&, const Execution&);

}  // namespace invar::reference
