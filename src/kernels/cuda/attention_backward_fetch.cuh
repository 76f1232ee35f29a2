// The warp of attention_backward_tiles.cu that fetches, and what it shares with the warpgroups.
#pragma once

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda::backward_tiles {

constexpr int kThreads = 384, kWarpgroups = 2, kStages = 4;
constexpr int kTile = 64;                    // rows of a warpgroup, and of what they meet
constexpr int kOwned = kWarpgroups * kTile;  // rows of a block
constexpr int kBoxBytes = kTile * 128;       // 64 columns of a tile
constexpr int kRowValueBytes = kTile * sizeof(float4);

enum class Owns { slots, queries };

// The shared memory of a block. Owned rows and tiles are a head's queries and their d_out, or its
// keys and values; behind a tile of queries stand their values.
template <int kHeadDim>
struct Shape {
  static constexpr int kBoxes = kHeadDim / 64, kSteps = kHeadDim / 16;
  static constexpr int kTensorBytes = kBoxes * kBoxBytes, kPairBytes = 2 * kTensorBytes;
  static constexpr int kStageBytes = kPairBytes + kRowValueBytes;
  static constexpr int kRingAt = kWarpgroups * kPairBytes,
                       kTaskAt = kRingAt + kStages * kStageBytes, kBarsAt = kTaskAt + 64,
                       kBytes = kBarsAt + 16 * (kStages + 1);
};

// The next rows of the warpgroups.
struct Task {
  int64_t row;   // the first owned row in the batch
  int position;  // its
  int size;      // positions of its sequence
  int head;      // of the slots, or of the queries
  int first;     // the position of the first tile
  int tiles;     // so many for each head; none: there is nothing left to do
};

struct Backward {
  AttentionBackwardParams p;
  float factor, scale;  // of scores and of their gradients

  // M, 1 / L and D of a query lie where its gradient will be.
  __device__ float4* row_values(int64_t row, int head) const {
    return reinterpret_cast<float4*>(p.d_qkv + row * p.d_qkv_stride +
                                     int64_t{head} * p.forward.kv.head_dim);
  }
  // How many blocks' slots are taken: it begins as the 0 behind the first query's values.
  __device__ unsigned* taken() const { return reinterpret_cast<unsigned*>(p.d_qkv) + 3; }
};

// ---- The warp that fetches

// Rows at positions that are multiples of 128, each of which begins the rows of a block, in
// ascending order; by a whole warp.
class Starts {
 public:
  __device__ explicit Starts(const AttentionParams& p) : p_(p) {}

  // The row of number i, or -1 where there are fewer; i ascends from call to call.
  __device__ int64_t row_of(int i) {
    const int lane = threadIdx.x % kWarp;
    for (; base_ < p_.rows; base_ += kWindows * kWarp) {
      bool begins[kWindows];
#pragma unroll
      for (int w = 0; w < kWindows; ++w) {
        const int64_t row = base_ + w * kWarp + lane;
        begins[w] = row < p_.rows && p_.positions[row] % kOwned == 0;
      }
      int before = before_;
#pragma unroll
      for (int w = 0; w < kWindows; ++w) {
        const uint32_t mask = __ballot_sync(kAllLanes, begins[w]);
        const int count = __popc(mask);
        if (i - before < count)
          return base_ + w * kWarp + static_cast<int>(__fns(mask, 0, i - before + 1));
        before += count;
      }
      before_ = before;
    }
    return -1;
  }

 private:
  static constexpr int kWindows = 8;
  const AttentionParams& p_;
  int64_t base_ = 0;
  int before_ = 0;  // how many begin before `base_`
};

// The row behind the last one of this row's table; by a whole warp.
__device__ inline int64_t end_of_sequence(const AttentionParams& p, int64_t row) {
  const int32_t table = p.table_of[row];
  int64_t last = row, beyond = p.rows;  // the last row that is known to be one of them
  while (beyond - last > 1) {
    const int64_t step = (beyond - last + kWarp - 1) / kWarp;
    const int64_t r = last + (threadIdx.x % kWarp + 1) * step;
    const int count = __popc(__ballot_sync(kAllLanes, r < beyond && p.table_of[r] == table));
    last += count * step;
    beyond = min(beyond, last + step);
  }
  return beyond;
}

struct Maps {
  CUtensorMap queries, d_out, keys, values;
};

template <int kHeadDim, Owns owns>
class Fetcher {
 public:
  using S = Shape<kHeadDim>;

  __device__ Fetcher(const Backward& of, const Maps& maps, unsigned char* shared, Ring ring,
                     Ring task_ring)
      : of_(of),
        p_(of.p.forward),
        maps_(maps),
        shared_(shared),
        base_(shared_address(shared)),
        ring_(ring),
        task_ring_(task_ring),
        lane_(static_cast<int>(threadIdx.x)),
        per_group_(p_.heads / p_.kv.kv_heads) {}

  __device__ void run() {
    Starts starts(p_);
    const int units = owns == Owns::slots ? p_.kv.kv_heads : p_.heads;
    for (int turn = 0;; ++turn) {
      const int item = item_of(turn);
      const int64_t row = starts.row_of(item / units);
      if (row < 0) break;
      fetch(row, item % units);
    }
    give({});
    if (lane_ == 0) barrier_arrive(task_ring_.full);
  }

 private:
  // The block's next item. Slots are taken by whoever is free: the first ones of a sequence meet
  // the most queries. Queries, whose values are written over, are dealt there and back.
  __device__ int item_of(int turn) const {
    if constexpr (owns == Owns::slots)
      return static_cast<int>(
          __shfl_sync(kAllLanes, lane_ == 0 ? atomicAdd(of_.taken(), 1u) : 0u, 0));
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    return turn * blocks + (turn % 2 ? blocks - 1 - block : block);
  }

  __device__ void give(const Task& task) {
    barrier_wait(task_ring_.empty, task_ring_.parity ^ 1);
    if (lane_ == 0) *reinterpret_cast<Task*>(shared_ + S::kTaskAt) = task;
    __syncwarp();
  }

  __device__ void fetch(int64_t row, int head) {
    Task task{.row = row, .position = p_.positions[row], .head = head};
    task.size = static_cast<int>(end_of_sequence(p_, row) - (row - task.position));
    const int end = task.position + kOwned;  // of the owned rows
    if constexpr (owns == Owns::slots) {
      task.first = task.position;
      const int last = p_.window > 0 ? min(task.size, end - 1 + p_.window) : task.size;
      task.tiles = (last - task.first + kTile - 1) / kTile;
    } else {
      const int first = p_.window > 0 ? max(0, task.position - p_.window + 1) : 0;
      task.first = first / kTile * kTile;
      task.tiles = (min(task.size, end) - task.first + kTile - 1) / kTile;
    }
    const int32_t* blocks = p_.tables[p_.table_of[row]];
    give(task);
    if (lane_ == 0) {
      barrier_expect(task_ring_.full, kWarpgroups * S::kPairBytes);
      for (int w = 0; w < kWarpgroups; ++w) {
        const uint32_t to = base_ + w * S::kPairBytes;
        if constexpr (owns == Owns::slots)
          load_slots(blocks, task.position + w * kTile, task.size, head, to, task_ring_.full);
        else
          load_queries(row + w * kTile, head, to, task_ring_.full);
      }
    }
    task_ring_.parity ^= 1;
    const int heads = owns == Owns::slots ? per_group_ : 1;
    for (int h = 0; h < heads; ++h)
      for (int i = 0; i < task.tiles; ++i) {
        const int64_t tile_row = row + i * kTile;
        const int query_head = head * per_group_ + h;
        float4 of_rows[2] = {};
        if constexpr (owns == Owns::slots) {
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const int64_t r = tile_row + n * kWarp + lane_;
            if (r < p_.rows) of_rows[n] = *of_.row_values(r, query_head);
          }
        }
        barrier_wait(ring_.empty_now(), ring_.parity ^ 1);
        const int at = S::kRingAt + ring_.stage * S::kStageBytes;
        if constexpr (owns == Owns::slots) {
          float4* values = reinterpret_cast<float4*>(shared_ + at + S::kPairBytes);
          values[lane_] = of_rows[0];
          values[kWarp + lane_] = of_rows[1];
          __syncwarp();
        }
        if (lane_ == 0) {
          barrier_expect(ring_.full_now(), S::kPairBytes);
          if constexpr (owns == Owns::slots)
            load_queries(tile_row, query_head, base_ + at, ring_.full_now());
          else
            load_slots(blocks, task.first + i * kTile, task.size, head / per_group_, base_ + at,
                       ring_.full_now());
        }
        ring_.next();
      }
  }

  // A tile of a head's queries and their d_out.
  __device__ void load_queries(int64_t row, int head, uint32_t to, uint32_t barrier) const {
    for (int c = 0; c < S::kBoxes; ++c) {
      load_box(to + c * kBoxBytes, maps_.queries, c * 64, head, static_cast<int>(row), barrier);
      load_box(to + S::kTensorBytes + c * kBoxBytes, maps_.d_out, c * 64, head,
               static_cast<int>(row), barrier);
    }
  }

  // A tile of slots' keys and values. Blocks behind the sequence need not exist: its last is read.
  __device__ void load_slots(const int32_t* blocks, int position, int size, int group, uint32_t to,
                             uint32_t barrier) const {
    const int block_size = p_.kv.block_size, count = min(block_size, kTile);
    for (int j = 0; j < kTile; j += count) {
      const int at = min(position + j, size - 1);
      const int block = blocks[at / block_size] * p_.kv.kv_heads + group,
                slot = at / block_size == (position + j) / block_size ? (position + j) % block_size
                                                                      : 0;
      for (int c = 0; c < S::kBoxes; ++c) {
        load_box(to + c * kBoxBytes + j * 128, maps_.keys, c * 64, slot, block, barrier);
        load_box(to + S::kTensorBytes + c * kBoxBytes + j * 128, maps_.values, c * 64, slot, block,
                 barrier);
      }
    }
  }

  const Backward& of_;
  const AttentionParams& p_;
  const Maps& maps_;
  unsigned char* shared_;
  const uint32_t base_;
  Ring ring_, task_ring_;
  const int lane_, per_group_;
};

}  // namespace invar::cuda::backward_tiles
