// Low-rank adapters (numerics 2.4) on a GPU: one launch computes the rows of all adapters of a
// step. Their matrices lie in panels in both orders: what a step of the tensor cores reads is 512
// bytes. A block has rows of one adapter and outputs of one of its tensors; which ones, it reads in
// the step's tables.
#pragma once

#include "base/check.h"
#include "kernels/adapters.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/portable_pairs.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda::adapters {

constexpr int kUnit = kAdapterUnit, kMostRank = 256, kMostRuns = 8;
constexpr int kOutputUnits = 32;  // of B that a block computes

// The work of a block: rows of one tile, and outputs of one tensor from unit `first` on.
struct Work {
  const AdapterSlot* slot = nullptr;  // null: nothing
  const AdapterSlot::Tensor* tensor = nullptr;
  const int32_t* rows = nullptr;
  int count = 0, first = 0;
};

__host__ __device__ constexpr int units_of(int64_t outputs) {
  return static_cast<int>((outputs + kUnit - 1) / kUnit);
}

// Blocks of a tile come one after the other, `each` units of a tensor to one.
template <typename Units>
__device__ __forceinline__ Work work_of(const AdapterTables& tables, int blocks, int each,
                                        const Units& units) {
  const AdapterTile tile = tables.tiles[blockIdx.x / blocks];
  if (tile.count == 0) return {};
  const AdapterSlot* slot = tables.slots + tile.slot * tables.slot_stride;
  int block = static_cast<int>(blockIdx.x) % blocks;
  for (int i = 0; i < slot->tensors; ++i) {
    const int has = (units(slot->outputs[i]) + each - 1) / each;
    if (block < has)
      return {slot, &slot->outputs[i], tables.rows + tile.first, tile.count, block * each};
    block -= has;
  }
  return {};
}

__device__ __forceinline__ int64_t column_of(const AdapterSlot::Tensor& to, int n) {
  return to.output + n / kUnit * kUnit * to.step + n % kUnit;
}

// A lane's operands in a step of 16 outputs: two pairs of inner elements of outputs 2i and 2i + 1,
// which lie side by side in a panel.
struct PanelStep {
  uint2 first, second;

  __device__ __forceinline__ static PanelStep load(const uint32_t* words, int step) {
    const auto* pair = reinterpret_cast<const uint2*>(words + step * 8 * kUnit);
    return {__ldg(pair), __ldg(pair + kUnit / 2)};
  }
  __device__ __forceinline__ StepOutputs operands() const {
    return {{first.x, first.y, second.x, second.y}};
  }
};
// A lane's words of a panel, from pair `pair` on.
__device__ __forceinline__ const uint32_t* words_of(const void* panels, int64_t panel,
                                                    int64_t padded, int64_t pair) {
  const int i = threadIdx.x % kWarp / 4, j = threadIdx.x % 4;
  return static_cast<const uint32_t*>(panels) + (panel * padded / 2 + pair + 2 * j) * kUnit + 2 * i;
}

constexpr int kTeams = kThreads / kUnit;  // half warps, whose lanes are outputs

// Not by way of the cache for what never changes: the kernel before wrote it.
__device__ __forceinline__ float2 widened(const bf16_t* pair) {
  const uint32_t word = *reinterpret_cast<const uint32_t*>(pair);
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000)};
}
__device__ __forceinline__ float2 widened(const float* pair) {
  return *reinterpret_cast<const float2*>(pair);
}

inline bool has_rows(const AdapterParams& p) {
  return p.tables.slots && p.tables.num_tiles > 0;
}

template <Order order>
void check_tables(const AdapterParams& p) {
  CHECK(p.tables.tile_rows == kFewAdapterRows ||
            (order == Order::hopper && p.tables.tile_rows == kManyAdapterRows),
        "rows of a tile of adapters");
  CHECK(p.split_k <= kMostRuns && p.tables.k % p.split_k == 0, "runs of an adapter's product");
  CHECK(p.x.type == DType::bf16 || (order == Order::portable && p.x.type == DType::f32),
        "the type of an adapter's product");
}

}  // namespace invar::cuda::adapters
