// Tiles of rows with heads of 256 elements: attention_tasks.cuh where a warpgroup's registers hold
// the whole output, but not two splits at a time. A split's values are multiplied 64 columns at a
// time; the other warpgroup makes probabilities meanwhile.
#pragma once

#include "kernels/cuda/attention_tasks.cuh"

namespace invar::cuda {

constexpr int kWideHead = 256, kWideParts = kWideHead / 64;
using WideOutputs = float[kWideParts][32];  // 64 columns each

template <typename WriteRows>
__device__ __forceinline__ void attend_wide_tasks(const TileWork& work, uint32_t base,
                                                  const Task& task, Ring key_ring, Ring value_ring,
                                                  Ring task_ring, const WriteRows& write_rows) {
  using S = TileShape<kWideHead>;
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128 - 1, 0);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x % 128 / kWarp;
  const int row = (work.tile_rows == 64 ? 0 : warpgroup * 64) + warp * 16 + lane / 4;
  const uint64_t queries = describe_rows(base + warpgroup * S::kQueryBytes);
  const uint64_t keys = describe_rows(base + S::kKeysAt);
  const uint64_t values = describe_columns(base + S::kValuesAt);
  const Turns<2> turns(warpgroup);
  for (;;) {
    barrier_wait(task_ring.full, task_ring.parity);
    task_ring.parity ^= 1;
    const int splits = task.splits;
    if (splits == 0) return turns.end();
    const int head = task.head + (work.tile_rows == 64 ? warpgroup : 0);
    const int all_from = task.all_from, all_to = task.all_to;
    const RowRange range = {{task.first[row], task.first[row + 8]},
                            {task.last[row], task.last[row + 8]}};
    const int64_t t = task.first_row + row;
    int at = task.split * kSplitSlots;

    WideOutputs out;
    RowState state = {.max = {kMinusInfinity, kMinusInfinity}, .sum = {0.0f, 0.0f}};
#pragma unroll
    for (auto& part : out)
#pragma unroll
      for (float& x : part) x = 0.0f;
    const auto release = [&](Ring& ring) {
      if (lane == 0) barrier_arrive(ring.empty_now());
      ring.next();
    };

#pragma unroll 1
    for (int i = 0; i < splits; ++i) {
      uint32_t weights[8][4];
      {
        float s[64];
        barrier_wait(key_ring.full_now(), key_ring.parity);
        turns.take();
        steps_begin();
#pragma unroll
        for (int k = 0; k < S::kSteps; ++k)
          product_step<kSplitSlots>(s, queries + k / 4 * (64 * 8) + k % 4 * 2,
                                    keys + k / 4 * (kBoxBytes / 16) + k % 4 * 2, k != 0);
        steps_commit();
        turns.pass();
        steps_wait<0>();
        release(key_ring);
        if (i + 1 == splits && lane == 0) barrier_arrive(task_ring.empty);  // all has been read
        const bool is_partial = at + kSplitSlots - 1 > all_to || at < all_from;
        probabilities(s, at, range, is_partial, lane, work.scale, state);
        at += kSplitSlots;
#pragma unroll
        for (int n = 0; n < 32; ++n) weights[n / 4][n % 4] = pack_bf16(s[2 * n], s[2 * n + 1]);
      }
      barrier_wait(value_ring.full_now(), value_ring.parity);
      turns.take();
#pragma unroll
      for (int c = 0; c < kWideParts; ++c) {
        float part[32];
        steps_begin();
#pragma unroll
        for (int k = 0; k < 8; ++k)
          values_step<64>(part, weights[k], values + c * (kBoxBytes / 16) + k * 128, k != 0);
        steps_commit();
        if (c + 1 == kWideParts) turns.pass();
        steps_wait<0>();
        merge(out[c], part, state);
      }
      release(value_ring);
    }
    write_rows(out, state, range, t, head, lane);
  }
}

}  // namespace invar::cuda
