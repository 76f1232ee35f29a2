// Which slots of a cache in 8 bits a step reads.
#pragma once

#include <algorithm>

#include "kernels/inference.h"

namespace invar {

// Calls use(block, head, first slot in the block) for every leaf of 32 slots that some row sees and
// that is the share's. Shares are heads and places in a block, so that a block that stands in
// several tables is written by one of them.
template <typename Use>
void for_each_stored_leaf(const LoadSlotsParams& p, Part share, Use use) {
  const int64_t size = p.kv.block_size, leaves = size / kLeafPad;
  const auto [begin, end] = share.of(p.kv.kv_heads * leaves);
  for (int64_t row = 0, next = 0; row < p.rows; row = next) {
    int64_t lowest = p.positions[row], highest = 0;
    for (next = row; next < p.rows && p.table_of[next] == p.table_of[row]; ++next) {
      const int64_t last = p.positions[next];
      lowest = std::min<int64_t>(lowest, first_slot(p.positions[next], p.window, p.chunk));
      highest = std::max(highest, last);
    }
    const int32_t* table = p.tables[p.table_of[row]];
    for (int64_t leaf = lowest / kLeafPad; leaf <= highest / kLeafPad; ++leaf)
      for (int64_t head = 0; head < p.kv.kv_heads; ++head) {
        const int64_t unit = head * leaves + leaf % leaves;
        if (begin <= unit && unit < end) use(table[leaf / leaves], head, leaf % leaves * kLeafPad);
      }
  }
}

}  // namespace invar
