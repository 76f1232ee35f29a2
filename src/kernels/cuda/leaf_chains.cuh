// Sums over rows: chains over leaves of 32 of them in the order portable (numerics 9), each
// column's by a cluster of blocks.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

constexpr int kLeaf = 32;

// One leaf of order portable: at(j) gives both factors of row j.
template <typename At>
__device__ float leaf_of(const At& at) {
  constexpr int kAtOnce = 16;  // rows whose loads do not wait for each other
  float even = 0.0f, odd = 0.0f;
#pragma unroll
  for (int j = 0; j < kLeaf; j += kAtOnce) {
    float2 rows[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) rows[i] = at(j + i);
    asm volatile("" ::: "memory");  // they are all on their way before the first one is used
#pragma unroll
    for (int i = 0; i < kAtOnce; i += 2) {
      even = __fmaf_rn(rows[i].x, rows[i].y, even);
      odd = __fmaf_rn(rows[i + 1].x, rows[i + 1].y, odd);
    }
  }
  return even + odd;
}

// A chain over `count` leaves, from acc on, for each of a cluster's columns: the threads of all its
// blocks compute leaves of a column at once, and the first block's first ones add them in order.
constexpr int kChainThreads = 1024, kChainBlocks = 8;
using Leaves = float[kChainBlocks * kChainThreads];  // in shared memory

// Columns of a cluster: whole cache lines, or so few that narrow sums have clusters for many
// multiprocessors, too.
constexpr int kWideColumns = 32, kNarrowColumns = 8, kNarrow = 512;

template <int kColumns, typename Leaf>
__device__ float chain(Leaves& leaves, float acc, int64_t count, bool is_column, const Leaf& leaf) {
  constexpr int kLeavesAtOnce = kChainThreads / kColumns, kRound = kChainBlocks * kLeavesAtOnce;
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  float* first_block = cluster.map_shared_rank(leaves, 0);
  const int column = threadIdx.x % kColumns;
  const int own = static_cast<int>(cluster.block_rank()) * kLeavesAtOnce + threadIdx.x / kColumns;
  for (int64_t first = 0; first < count; first += kRound) {
    if (is_column && first + own < count) first_block[own * kColumns + column] = leaf(first + own);
    cluster.sync();
    const int there = static_cast<int>(min(int64_t{kRound}, count - first));
#pragma unroll 8
    for (int i = 0; own == 0 && i < there; ++i) acc = acc + leaves[i * kColumns + column];
    cluster.sync();
  }
  return acc + 0.0f;
}

template <int kColumns>
__device__ int64_t column_of_cluster() {
  return static_cast<int64_t>(blockIdx.x / kChainBlocks) * kColumns + threadIdx.x % kColumns;
}
template <int kColumns>
__device__ bool has_sum() {
  return blockIdx.x % kChainBlocks == 0 && threadIdx.x < kColumns;
}

// Clusters that have so many columns.
inline LaunchShape chains(int64_t columns, int at_once = kWideColumns) {
  return {blocks_of(columns, at_once) * kChainBlocks, kChainThreads, 0, kChainBlocks};
}

}  // namespace invar::cuda
