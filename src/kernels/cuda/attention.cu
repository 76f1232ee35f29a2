// Attention by slot (numerics 4) on a GPU, for both orders, any head size; of order `hopper` where
// attention_tiles.cu and attention_single.cu cannot.
//
// A block takes up to kQueries query heads that share a key/value head and a block table and walks
// over the splits of 128 slots: scores, then probabilities, then the weighted sum of values.
// Splits are independent, so the blocks of a cluster take neighbouring ones at the same time; then
// each block merges, in ascending order, the splits of the queries that it owns. The orders differ
// in who computes the two products, not in the rest.
#include <cooperative_groups.h>

#include <array>
#include <limits>

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/attention_cores.cuh"
#include "kernels/cuda/attention_f32.h"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda {

namespace {

// Probabilities of one split and their part of the state: a warp takes two queries, a lane slots
// lane, lane + 32, ...
template <typename Shared>
__device__ void probabilities(const Segment& s, int64_t base, ScoreScale scale, Shared& shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const float c = scale.factor;
  for (int q = warp; q < kQueries; q += kWarps) {
    float p[4] = {};
    float top = -std::numeric_limits<float>::infinity();
    const bool has_slot =
        q < s.count && shared.first[q] < base + kSplitSlots && shared.last[q] >= base;
    const auto is_valid = [&](int i) {
      const int64_t slot = base + lane + 32 * i;
      return has_slot && slot >= shared.first[q] && slot <= shared.last[q];
    };
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (is_valid(i)) {
        float& d = shared.scores[q][lane + 32 * i];
        if (scale.inner > 0) d = math::half_tanh(d * scale.inner);
        top = top < d ? d : top;
      }
    const float max = warp_max(top) * c;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (is_valid(i)) p[i] = math::exp2(__fmaf_rn(shared.scores[q][lane + 32 * i], c, -max));
    const float sum = halve64(p[0] + p[2], p[1] + p[3]);
    bf16_t* weights = reinterpret_cast<bf16_t*>(shared.weights[q]);
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[lane + 32 * i] = f32_to_bf16(p[i]);
    if (lane == 0) {
      shared.has_slot[q] = has_slot;
      shared.split_max[q] = max;
      shared.split_sum[q] = sum;
    }
  }
}

// Splits of the cluster's blocks, in ascending order, join M and L of one owned query (numerics 4,
// step 4).
template <typename Shared>
__device__ void merge_sums(const Shared* const* blocks, int count, int query, int owned,
                           Shared& shared) {
  for (int i = 0; i < count; ++i) {
    Merge& merge = shared.merge[owned][i];
    merge = Merge::skip;
    if (!blocks[i]->has_slot[query]) continue;
    const float max = blocks[i]->split_max[query], sum = blocks[i]->split_sum[query];
    if (!shared.is_set[owned]) {
      merge = Merge::set;
      shared.is_set[owned] = true;
      shared.max[owned] = max;
      shared.sum[owned] = sum;
      continue;
    }
    merge = Merge::join;
    const float old = shared.max[owned], both = old < max ? max : old;
    const float a = math::exp2(old - both), b = math::exp2(max - both);
    shared.max[owned] = both;
    shared.sum[owned] = __fmaf_rn(shared.sum[owned], a, sum * b);
    shared.a[owned][i] = a;
    shared.b[owned][i] = b;
  }
}

// A head's sink joins M and L of one owned query: one more split, whose sum is 1 and whose values
// are 0.
template <typename Shared>
__device__ void merge_sink(const float* sinks, int query, int owned, Shared& shared) {
  const float m = sinks[shared.head[query]] * math::constants::kLog2eHigh, old = shared.max[owned],
              both = old < m ? m : old;
  const float a = math::exp2(old - both);
  shared.sum[owned] = __fmaf_rn(shared.sum[owned], a, math::exp2(m - both));
  shared.a[owned][0] = a;
}

template <int kCluster>
__device__ void cluster_wait() {
  if constexpr (kCluster == 1)
    __syncthreads();
  else
    cooperative_groups::this_cluster().sync();
}

// All slots of the queries in shared.row and shared.head, which share the segment's cache.
template <typename Cores, int kCluster, typename Shared>
__device__ void attend(const AttentionParams& p, const Segment& s, ScoreScale c, Shared& shared) {
  const int tid = threadIdx.x, head_dim = p.kv.head_dim;
  const int words = static_cast<int>(round_up(head_dim, 32)) / 2;
  if (tid < kQueries) {
    shared.is_set[tid] = false;
    if (tid < s.count) {
      const int64_t last = p.positions[shared.row[tid]];
      shared.last[tid] = last;
      shared.first[tid] = first_slot(p, shared.row[tid]);
    }
  }
  const uint32_t* queries = reinterpret_cast<const uint32_t*>(p.q);
  for (int i = tid; i < kQueries * words; i += kThreads) {
    const int q = i / words;
    shared.q[q][i % words] =
        q < s.count ? queries[(shared.row[q] * p.heads + shared.head[q]) * words + i % words] : 0;
  }
  __syncthreads();
  if (tid == 0) {
    shared.begin = shared.first[0];
    shared.end = shared.last[0] + 1;
    for (int q = 1; q < s.count; ++q) {
      if (shared.first[q] < shared.begin) shared.begin = shared.first[q];
      if (shared.last[q] >= shared.end) shared.end = shared.last[q] + 1;
    }
  }
  __syncthreads();

  // Block r of the cluster takes every kCluster-th split and owns queries r, r + kCluster, ...
  constexpr int kOwned = kQueries / kCluster,
                kElements = (Shared::kMaxHeadDim + kThreads - 1) / kThreads;
  const int rank = kCluster == 1 ? 0 : static_cast<int>(blockIdx.x % kCluster);
  const Shared* blocks[kCluster];
#pragma unroll
  for (int i = 0; i < kCluster; ++i)
    blocks[i] =
        kCluster == 1 ? &shared : cooperative_groups::this_cluster().map_shared_rank(&shared, i);
  float state[kOwned][kElements] = {};
  for (int64_t base0 = shared.begin / kSplitSlots * kSplitSlots; base0 < shared.end;
       base0 += kCluster * kSplitSlots) {
    const int64_t base = base0 + rank * kSplitSlots;
    if (base < shared.end) {
      Cores::scores(p.kv, s, base, shared);
      __syncthreads();
      probabilities(s, base, c, shared);
      __syncthreads();
      Cores::outputs(p.kv, s, base, shared);
    } else if (tid < kQueries) {
      shared.has_slot[tid] = false;
    }
    cluster_wait<kCluster>();
    if (tid < kOwned) merge_sums(blocks, kCluster, rank + tid * kCluster, tid, shared);
    __syncthreads();
#pragma unroll
    for (int o = 0; o < kOwned; ++o)
#pragma unroll
      for (int n = 0; n < kElements; ++n) {
        const int e = n * kThreads + tid;
        if (e >= head_dim) continue;
        float& out = state[o][n];
#pragma unroll
        for (int i = 0; i < kCluster; ++i) {
          if (shared.merge[o][i] == Merge::skip) continue;
          const float split = blocks[i]->split_out[rank + o * kCluster][e];
          out = shared.merge[o][i] == Merge::set
                    ? split
                    : __fmaf_rn(out, shared.a[o][i], split * shared.b[o][i]);
        }
      }
    cluster_wait<kCluster>();
  }
  if (p.sinks && tid < kOwned && rank + tid * kCluster < s.count)
    merge_sink(p.sinks, rank + tid * kCluster, tid, shared);
  __syncthreads();
#pragma unroll
  for (int o = 0; o < kOwned; ++o)
#pragma unroll
    for (int n = 0; n < kElements; ++n) {
      const int q = rank + o * kCluster, e = n * kThreads + tid;
      if (p.sinks) state[o][n] = __fmaf_rn(state[o][n], shared.a[o][0], 0.0f);
      if (q < s.count && e < head_dim)
        store(p.out, shared.row[q] * p.out.stride + shared.head[q] * head_dim + e,
              state[o][n] / shared.sum[o]);
    }
  __syncthreads();
}

// A cluster takes `unit_rows` rows and up to kQueries heads of one key/value head.
template <typename Cores, int kCluster, int kMaxHeadDim>
__global__ __launch_bounds__(kThreads) void attention_kernel(AttentionParams p, int unit_rows,
                                                             int head_blocks, ScoreScale c) {
  __shared__ Shared<kMaxHeadDim> shared;
  const int group = blockIdx.y / head_blocks, of_group = p.heads / p.kv.kv_heads;
  const int first_head = blockIdx.y % head_blocks * kQueries, left = of_group - first_head;
  const int heads = head_blocks == 1 || left < kQueries ? left : kQueries;
  const int64_t t0 = int64_t{blockIdx.x / kCluster} * unit_rows;
  const int64_t rows = t0 + unit_rows < p.rows ? unit_rows : p.rows - t0;
  const int64_t queries = rows * heads;
  const auto row_of = [&](int64_t i) { return t0 + i / heads; };
  for (int64_t i = 0; i < queries;) {
    const int32_t table = p.table_of[row_of(i)];
    int count = 0;
    while (count < kQueries && i + count < queries && p.table_of[row_of(i + count)] == table)
      ++count;
    if (threadIdx.x < count) {
      shared.row[threadIdx.x] = row_of(i + threadIdx.x);
      shared.head[threadIdx.x] =
          group * of_group + first_head + static_cast<int>((i + threadIdx.x) % heads);
    }
    __syncthreads();
    attend<Cores, kCluster>(p, {count, group, p.tables[table]}, c, shared);
    i += count;
  }
  const int64_t width = int64_t{p.heads} * p.kv.head_dim, pad = round_up(width, kLeafPad) - width;
  if (blockIdx.y == 0 && blockIdx.x % kCluster == 0)
    for (int64_t i = threadIdx.x; i < rows * pad; i += kThreads)
      store(p.out, (t0 + i / pad) * p.out.stride + width + i % pad, 0.0f);
}

template <typename Cores, int kCluster, int kMaxHeadDim>
void launch(const AttentionParams& p, int unit_rows, const Execution& on) {
  const ScoreScale c = score_scale(p);
  const int64_t units = (p.rows + unit_rows - 1) / unit_rows;
  const int head_blocks = (p.heads / p.kv.kv_heads + kQueries - 1) / kQueries;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(units * kCluster),
                        static_cast<unsigned>(p.kv.kv_heads * head_blocks));
  config.blockDim = kThreads;
  config.stream = stream_of(on);
  config.attrs = &cluster;
  config.numAttrs = kCluster > 1;
  cuda_check(cudaLaunchKernelEx(&config, attention_kernel<Cores, kCluster, kMaxHeadDim>, p,
                                unit_rows, head_blocks, c),
             "attending");
}

template <typename Cores, int kCluster>
void launch_for_head(const AttentionParams& p, int unit_rows, const Execution& on) {
  if (p.rows == 0) return;
  p.kv.head_dim <= kUsualHeadDim ? launch<Cores, kCluster, kUsualHeadDim>(p, unit_rows, on)
                                 : launch<Cores, kCluster, kLatentHeadDim>(p, unit_rows, on);
}

// Every row on its own: many blocks.
template <typename Cores, int kCluster>
void by_row(const AttentionParams& p, const Execution& on) {
  launch_for_head<Cores, kCluster>(p, 1, on);
}
// As many rows as fill a block, so that neighbours share the cache's reads.
template <typename Cores>
void by_block(const AttentionParams& p, const Execution& on) {
  const int per_group = p.heads / p.kv.kv_heads;
  launch_for_head<Cores, 1>(p, per_group < kQueries ? kQueries / per_group : 1, on);
}

bool is_of_bf16(const AttentionParams& p) {
  return !p.kv.is_f32();
}
bool is_of_f32(const AttentionParams& p) {
  return p.kv.is_f32();
}

// Tables of many rows by tiles of rows, the others row by row (attention_rows.cuh).
bool rows_can(const AttentionParams& p) {
  const int e = p.kv.head_dim;
  return p.out.type == DType::bf16 && (may_have_many_rows(p) ? tiles_can(e) : single_can(e));
}
void by_tables(const AttentionParams& params, const Execution& on) {
  const AttentionParams p = shared_can(params) ? params : without_shared(params);
  if (may_have_many_rows(p)) attend_tiles(p, on);
  if (p.num_shared > 0) attend_shared(p, on);
  if (p.fewest_rows < kManyRows) attend_single(p, on);
}

// row: a row of queries for a cluster of so many blocks; block: rows together.
constexpr auto kPortableSchedules =
    std::to_array<AttentionSchedule>({{"row, cluster of 8", by_row<CudaCores, 8>, 32, is_of_bf16},
                                      {"row, cluster of 2", by_row<CudaCores, 2>, 128, is_of_bf16},
                                      {"block", by_block<CudaCores>, int64_t{1} << 62, is_of_bf16},
                                      {"f32", attention_f32, int64_t{1} << 62, is_of_f32}});
constexpr auto kHopperSchedules = std::to_array<AttentionSchedule>(
    {{"tiles and single rows", by_tables, int64_t{1} << 62, rows_can},
     {"row, cluster of 8", by_row<TensorCores, 8>, 32, is_of_bf16},
     {"row, cluster of 2", by_row<TensorCores, 2>, 128, is_of_bf16},
     {"block", by_block<TensorCores>, int64_t{1} << 62, is_of_bf16}});

}  // namespace

void rotated_attention(const RotatedAttentionParams& p, const Execution& on) {
  if (p.of.rows == 0) return;
  if (p.of.out.type == DType::bf16 && single_can(p.of.kv.head_dim) && !shared_can(p.of) &&
      single_rotates(p.of, on))
    return attend_single_rotated({p.rotation, without_shared(p.of)}, on);
  qkv(p.rotation, on);
  kernels(Order::hopper).attention(p.of, on);
}

bool tiles_keep_sums(const AttentionParams& p) {
  return rows_can(p) && may_have_many_rows(p);
}

void attend_with_sums(const PartialAttentionParams& p, const Execution& on) {
  const AttentionParams of = without_shared(p.of);
  CHECK(!of.sinks && !p.begin, "what attention keeps for its backward");
  attend_tiles(of, on, p.max, p.sum);
  if (of.fewest_rows >= kManyRows) return;
  attend_single(of, on);
  attention_sums<Order::hopper>(p, SumsOf::few_rows, on);
}

std::span<const AttentionSchedule> attention_schedules(Order order) {
  if (order == Order::hopper) return kHopperSchedules;
  return kPortableSchedules;
}

}  // namespace invar::cuda
