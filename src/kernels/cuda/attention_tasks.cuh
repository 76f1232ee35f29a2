// A tile of rows and the splits that all of them read: what a block of attention_tiles.cu and of
// attention_shared.cu computes (order `hopper`, numerics 4).
#pragma once

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/wgmma_values.cuh"

namespace invar::cuda {

constexpr int kTileThreads = 384, kMaxTileRows = 128, kTileStages = 2;  // two warpgroups and a warp
constexpr int kBoxBytes = kSplitSlots * 128;  // 64 columns of a split's slots

// What the warpgroups do next: rows [begin, end) of a tile, which share a table.
struct Task {
  int64_t first_row;     // the tile's, in the batch
  int head;              // the first warpgroup's
  int split, splits;     // the first one, and how many; none: there is nothing left to do
  int all_from, all_to;  // slots that every row sees
  int first[kMaxTileRows], last[kMaxTileRows];  // slots that a row sees; none outside of the task
};

// How the batch is cut into tiles, from its first row of a table of many on. Blocks take them in
// turns, the later rows first: they take longer.
struct TileWork {
  int tile_rows, tiles, pairs;  // at most so many; blocks for the queries of a key/value head
  ScoreScale scale;
  float *max = nullptr, *sum = nullptr;  // PartialAttentionParams

  __host__ __device__ int items(int kv_heads) const { return tiles * pairs * kv_heads; }
};

template <int kHeadDim>
struct TileShape {
  static constexpr int kBoxes = (kHeadDim + 63) / 64, kSteps = (kHeadDim + 15) / 16;
  static constexpr int kStages = kHeadDim > 128 ? 1 : kTileStages;  // as shared memory holds
  static constexpr int kFirst = 64,
                       kSecond = kHeadDim - kFirst;      // columns of values, in two halves
  static constexpr int kQueryBytes = kBoxes * 64 * 128;  // of a warpgroup
  static constexpr int kStageBytes = kBoxes * kBoxBytes;
  static constexpr int kKeysAt = 2 * kQueryBytes, kValuesAt = kKeysAt + kStages * kStageBytes,
                       kTaskAt = kValuesAt + kStages * kStageBytes,
                       kBarsAt = kTaskAt + (sizeof(Task) + 15) / 16 * 16,
                       kBytes = kBarsAt + 16 * (2 * kStages + 1);
};

// Its barriers, as a kernel of so many warpgroups begins; by all threads.
struct TileRings {
  Ring keys, values, tasks;

  __device__ explicit TileRings(uint32_t bars, int warpgroups = 2, int stages = kTileStages)
      : keys{bars, bars + 8 * stages, stages},
        values{bars + 16 * stages, bars + 24 * stages, stages},
        tasks{bars + 32 * stages, bars + 32 * stages + 8, 1} {
    if (threadIdx.x == 0) {
      keys.init(4 * warpgroups);
      values.init(4 * warpgroups);
      tasks.init(4 * warpgroups);
    }
    __syncthreads();
  }
};

// Two warpgroups multiply in turns, so that one's products keep the tensor cores busy while the
// other makes probabilities. Left alone both do the same at the same time. Both take as many turns;
// one warpgroup alone needs none.
template <int kWarpgroups>
class Turns {
 public:
  __device__ __forceinline__ explicit Turns(int mine) : mine_(mine) {
    if (mine_ == 1) pass();  // the first turn is the other's
  }
  __device__ __forceinline__ void take() const {
    if constexpr (kWarpgroups == 2) named_sync(kName + mine_, 256);
  }
  __device__ __forceinline__ void pass() const {
    if constexpr (kWarpgroups == 2) named_arrive(kName + 1 - mine_, 256);
  }
  // No arrival is left over.
  __device__ __forceinline__ void end() const {
    if (mine_ == 0) take();
  }

 private:
  static constexpr int kName = 1;  // of two named barriers
  int mine_;
};

// `write_rows` ends and writes what became of a task's rows: (first and second half of the head,
// state, range, the lane's first row, head, lane).
template <int kHeadDim, int kWarpgroups, typename WriteRows>
__device__ __forceinline__ void attend_tasks(const TileWork& work, uint32_t base, const Task& task,
                                             Ring key_ring, Ring value_ring, Ring task_ring,
                                             const WriteRows& write_rows) {
  using S = TileShape<kHeadDim>;
  constexpr int kSecond = S::kSecond;
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128 - 1, 0);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x % 128 / kWarp;
  const int row = (work.tile_rows == 64 ? 0 : warpgroup * 64) + warp * 16 + lane / 4;
  const uint64_t queries = describe_rows(base + warpgroup * S::kQueryBytes);
  const ScoreScale scale = work.scale;
  const Turns<kWarpgroups> turns(warpgroup);
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

    float s[64], out[S::kFirst / 2], part[S::kFirst / 2];
    float out2[kSecond > 0 ? kSecond / 2 : 4], part2[kSecond > 0 ? kSecond / 2 : 4];
    uint32_t weights[8][4];
    RowState state = {.max = {kMinusInfinity, kMinusInfinity}, .sum = {0.0f, 0.0f}};
#pragma unroll
    for (float& x : out) x = 0.0f;
#pragma unroll
    for (float& x : out2) x = 0.0f;

    const auto multiply_keys = [&] {
      const int stage = __shfl_sync(kAllLanes, key_ring.stage, 0);
      const uint64_t keys = describe_rows(base + S::kKeysAt + stage * S::kStageBytes);
      steps_begin();
#pragma unroll
      for (int k = 0; k < S::kSteps; ++k)
        product_step<kSplitSlots>(s, queries + k / 4 * (64 * 8) + k % 4 * 2,
                                  keys + k / 4 * (kBoxBytes / 16) + k % 4 * 2, k != 0);
      steps_commit();
    };
    const auto values_at = [&](int half) {
      const int stage = __shfl_sync(kAllLanes, value_ring.stage, 0);
      return describe_columns(base + S::kValuesAt + stage * S::kStageBytes + half * kBoxBytes);
    };
    const auto multiply_first = [&] {
      steps_begin();
      const uint64_t values = values_at(0);
#pragma unroll
      for (int k = 0; k < 8; ++k)
        values_step<S::kFirst>(part, weights[k], values + k * 128, k != 0);
      steps_commit();
    };
    const auto multiply_second = [&] {
      if constexpr (kSecond > 0) {
        steps_begin();
        const uint64_t values = values_at(1);
#pragma unroll
        for (int k = 0; k < 8; ++k)
          values_step<kSecond>(part2, weights[k], values + k * 128, k != 0);
        steps_commit();
      }
    };
    const auto release = [&](Ring& ring) {
      if (lane == 0) barrier_arrive(ring.empty_now());
      ring.next();
    };
    const auto soften = [&] {
      const bool is_partial = at + kSplitSlots - 1 > all_to || at < all_from;
      probabilities(s, at, range, is_partial, lane, scale, state);
      at += kSplitSlots;
    };
    const auto pack = [&] {
#pragma unroll
      for (int i = 0; i < 32; ++i) weights[i / 4][i % 4] = pack_bf16(s[2 * i], s[2 * i + 1]);
    };

    barrier_wait(key_ring.full_now(), key_ring.parity);
    turns.take();
    multiply_keys();
    turns.pass();
    steps_wait<0>();
    release(key_ring);
    soften();
    pack();
#pragma unroll 1
    for (int i = 1; i < splits; ++i) {
      const RowState before = state;
      barrier_wait(value_ring.full_now(), value_ring.parity);
      barrier_wait(key_ring.full_now(), key_ring.parity);
      turns.take();
      multiply_first();
      multiply_keys();
      steps_wait<1>();
      merge(out, part, before);
      multiply_second();
      turns.pass();
      steps_wait<(kSecond > 0)>();
      release(key_ring);
      soften();
      steps_wait<0>();
      release(value_ring);
      if constexpr (kSecond > 0) merge(out2, part2, before);
      pack();
    }
    if (lane == 0) barrier_arrive(task_ring.empty);  // queries and task have been read
    barrier_wait(value_ring.full_now(), value_ring.parity);
    turns.take();
    multiply_first();
    multiply_second();
    turns.pass();
    steps_wait<0>();
    release(value_ring);
    merge(out, part, state);
    if constexpr (kSecond > 0) merge(out2, part2, state);

    write_rows(out, out2, state, range, t, head, lane);
  }
}

}  // namespace invar::cuda
