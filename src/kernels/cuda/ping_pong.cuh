// Products of many rows whose two warpgroups own a whole tile of 128 x 128 each, so that one writes
// its results while the other multiplies (order `hopper`, and integers).
#pragma once

#include "kernels/cuda/product_kinds.cuh"

namespace invar::cuda::ping_pong {

constexpr int kThreads = 384, kColumns = 128;
constexpr int kWeightsAt = kTileRows * 128, kStageBytes = kWeightsAt + kColumns * 128;
// Of the warp that fetches, and of those that multiply.
constexpr int kFetchRegisters = 40, kRegisters = 232;

// By the warpgroups that multiply, of numbers 0 and 1: every second of the team's tiles. `finish`
// gets a tile, the sums of its upper 64 rows and those of its lower ones (wgmma_steps.cuh).
template <typename Kind = Bf16Kind, int kPair, typename Finish>
__device__ __forceinline__ void multiply(const TileTeam<kPair>& team, Ring& ring, uint32_t base,
                                         int mine, int tiles, int slices, const Finish& finish) {
  constexpr int kTurn = 1;  // named barriers kTurn and kTurn + 1: a warpgroup's turn to multiply
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int count = 0;
  for (int tile = team.number; tile < tiles; tile += team.count, ++count) {
    if (count % 2 != mine) {
      ring.skip(slices);
      continue;
    }
    typename Kind::Sum upper[kColumns / 2], lower[kColumns / 2];
    if (count > 0) named_sync(kTurn + mine, 256);
    int previous = -1;
    for (int slice = 0; slice < slices; ++slice, ring.next()) {
      barrier_wait(ring.full_now(), ring.parity);
      const uint64_t a = describe_rows(base + ring.stage * kStageBytes),
                     b = describe_rows(base + ring.stage * kStageBytes + kWeightsAt);
      steps_begin();
#pragma unroll
      for (int i = 0; i < kSlice / 16; ++i) {
        Kind::template step<kColumns>(upper, a + 2 * i, b + 2 * i, (slice | i) != 0);
        Kind::template step<kColumns>(lower, a + 64 * 8 + 2 * i, b + 2 * i, (slice | i) != 0);
      }
      steps_commit();
      if (previous >= 0) {
        steps_wait<1>();
        if (lane == 0) team.release(ring.empty + 8 * previous);
      }
      previous = ring.stage;
    }
    if (tile + team.count < tiles) named_arrive(kTurn + 1 - mine, 256);
    steps_wait<0>();
    if (lane == 0) team.release(ring.empty + 8 * previous);
    wait_for_kernels_before();
    finish(tile, upper, lower);
  }
}

}  // namespace invar::cuda::ping_pong
