// Attention of order `portable` for the table of kernels: cuts it into tiles, which one of the
// sets' functions in attention_tile.h computes, and deals them to the shares.
#pragma once

#include "kernels/cpu/attention_tile.h"
#include "kernels/inference.h"

namespace invar::cpu {

void attention(Attend attend, int tile_queries, const PartialAttentionParams& p,
               const Execution& on);

// Puts the attention of a set into the table, when its order is `portable`.
template <Attend attend, int tile_queries>
void override_attention(Kernels& kernels) {
  if (kernels.order != Order::portable) return;
  kernels.partial_attention = [](const PartialAttentionParams& p, const Execution& on) {
    attention(attend, tile_queries, p, on);
  };
  kernels.attention = [](const AttentionParams& p, const Execution& on) {
    attention(attend, tile_queries, {p}, on);
  };
}

}  // namespace invar::cpu
