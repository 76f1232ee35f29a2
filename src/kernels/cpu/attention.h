// Attention of the orders `portable` and `pair` for the table of kernels: cuts it into tiles, which
// one of the sets' functions in attention_tile.h computes, and deals them to the shares.
#pragma once

#include "kernels/cpu/attention_tile.h"
#include "kernels/inference.h"

namespace invar::cpu {

// A set's functions for a cache of bf16, in tiles of so many queries, and of f32.
struct AttendFunctions {
  Attend bf16;
  int tile_queries;
  Attend f32;
  AddIndexScores index;
};

void attention(const AttendFunctions& attend, const PartialAttentionParams& p, const Execution& on);

// Puts the attention of a set into the table, when its order is that of the functions.
template <const AttendFunctions& attend, Order order = Order::portable>
void override_attention(Kernels& kernels) {
  if (kernels.order != order) return;
  kernels.partial_attention = [](const PartialAttentionParams& p, const Execution& on) {
    attention(attend, p, on);
  };
  kernels.attention = [](const AttentionParams& p, const Execution& on) {
    attention(attend, {p}, on);
  };
}

}  // namespace invar::cpu
