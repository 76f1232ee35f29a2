// Attention of single rows to the slots that several of them share: sequences that decode behind
// one prompt (order `hopper`, numerics 4).
//
// A block takes 64 rows and one query head or two, a warpgroup each, and reads a shared split once
// for all of them. What it merges, in ascending order, attention_single.cu goes on from. Merging is
// a chain, so that there are few blocks, as long as the prefix: of one head each as long as
// multiprocessors are left.
#include "base/check.h"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/attention_tasks.cuh"

namespace invar::cuda {

namespace {

// One task, by a whole warp.
template <int kHeadDim, int kHeads>
__device__ void fetch(const AttentionParams& p, const TileWork& work, const CUtensorMap& queries,
                      const CUtensorMap& keys, const CUtensorMap& values, uint32_t base, Task& task,
                      TileRings& rings) {
  using S = TileShape<kHeadDim>;
  const int lane = threadIdx.x, groups = p.kv.kv_heads, block = static_cast<int>(blockIdx.x),
            group = block % groups;
  const SharedPrefix prefix = p.shared[block / (groups * work.pairs)];
  const int head = (group * work.pairs + block / groups % work.pairs) * kHeads;
  const auto is_wanted = [&](int row) { return prefix.rows >> row & 1; };
#pragma unroll
  for (int row = lane; row < kMaxTileRows; row += kWarp) {
    task.first[row] = 0;
    task.last[row] = row < 64 && is_wanted(row) ? prefix.splits * kSplitSlots - 1 : -1;
  }
  if (lane == 0) {
    task.first_row = prefix.first_row;
    task.head = head;
    task.split = 0;
    task.splits = prefix.splits;
    task.all_from = 0;  // what other rows would get is not written
    task.all_to = prefix.splits * kSplitSlots - 1;
  }
  __syncwarp();
  wait_for_kernels_before();
  if (lane == 0) {
    barrier_expect(rings.tasks.full, kHeads * S::kQueryBytes);
    for (int w = 0; w < kHeads; ++w)
      for (int c = 0; c < S::kBoxes; ++c)
        load_box(base + w * S::kQueryBytes + c * 64 * 128, queries, c * 64, head + w,
                 prefix.first_row, rings.tasks.full);
  }
  const int32_t* blocks = p.tables[p.table_of[prefix.first_row + __ffsll(prefix.rows) - 1]];
  const int per_split = kSplitSlots / p.kv.block_size, pages = prefix.splits * per_split;
  int window = 0;
  for (int i = 0; i < prefix.splits; ++i) {
    const int at = i * per_split % kWarp;
    if (at == 0) window = blocks[min(i * per_split + lane, pages - 1)];
    for (int which = 0; which < 2; ++which) {
      Ring& ring = which ? rings.values : rings.keys;
      const uint32_t to = base + (which ? S::kValuesAt : S::kKeysAt) + ring.stage * S::kStageBytes;
      barrier_wait(ring.empty_now(), ring.parity ^ 1);
      if (lane == 0) barrier_expect(ring.full_now(), S::kStageBytes);
      for (int j = 0; j < per_split; ++j) {
        const int page = __shfl_sync(kAllLanes, window, at + j);
        if (lane == 0)
          for (int c = 0; c < S::kBoxes; ++c)
            load_box(to + c * kBoxBytes + j * p.kv.block_size * 128, which ? values : keys, c * 64,
                     0, page * groups + group, ring.full_now());
      }
      ring.next();
    }
  }
  barrier_wait(rings.tasks.empty, 0);
  if (lane == 0) {
    task.splits = 0;
    barrier_arrive(rings.tasks.full);
  }
}

// A lane's values of its two rows: columns 8x + 2 (lane % 4) and the next, of each.
template <int kValues>
__device__ __forceinline__ void write_state(const float (&out)[kValues], float* const (&to)[2],
                                            int lane, const bool (&wanted)[2]) {
#pragma unroll
  for (int x = 0; x < kValues; x += 2) {
    const int r = x / 2 % 2;
    if (wanted[r])
      *reinterpret_cast<float2*>(to[r] + x / 4 * 8 + lane % 4 * 2) = {out[x], out[x + 1]};
  }
}

template <int kHeads>
constexpr int kThreads = 128 * (1 + kHeads);

template <int kHeadDim, int kHeads>
__global__ __launch_bounds__(kThreads<kHeads>,
                             1) void shared_kernel(const __grid_constant__ CUtensorMap queries,
                                                   const __grid_constant__ CUtensorMap keys,
                                                   const __grid_constant__ CUtensorMap values,
                                                   const AttentionParams p, const TileWork work,
                                                   const Parts parts) {
  using S = TileShape<kHeadDim>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared);
  Task& task = *reinterpret_cast<Task*>(shared + S::kTaskAt);
  TileRings rings(base + S::kBarsAt, kHeads);
  let_next_kernel_start();
  if (__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128, 0) == 0) {
    if constexpr (kHeads == 2) fewer_registers<24>();
    if (threadIdx.x < kWarp)
      fetch<kHeadDim, kHeads>(p, work, queries, keys, values, base, task, rings);
  } else {
    if constexpr (kHeads == 2) more_registers<240>();
    attend_tasks<kHeadDim, kHeads>(
        work, base, task, rings.keys, rings.values, rings.tasks,
        [&](const auto& out, const auto& out2, const RowState& state, const RowRange& range,
            int64_t t, int head, int lane) {
          const bool wanted[2] = {range.last[0] >= 0, range.last[1] >= 0};
          const int64_t at[2] = {parts.state_at(p, t, head), parts.state_at(p, t + 8, head)};
          float* const to[2] = {parts.out + at[0] * kHeadDim, parts.out + at[1] * kHeadDim};
          [[maybe_unused]] float* const to2[2] = {to[0] + S::kFirst, to[1] + S::kFirst};
          write_state(out, to, lane, wanted);
          if constexpr (S::kSecond > 0) write_state(out2, to2, lane, wanted);
#pragma unroll
          for (int r = 0; r < 2; ++r)
            if (wanted[r] && lane % 4 == 0) parts.sums[at[r]] = {state.max[r], state.sum[r]};
        });
  }
}

template <int kHeadDim, int kHeads>
void attend_heads(const AttentionParams& p, const Execution& on) {
  const TileWork work{.tile_rows = 64,
                      .tiles = p.num_shared,
                      .pairs = p.heads / p.kv.kv_heads / kHeads,
                      .scale = score_scale(p)};
  launch("attending", shared_kernel<kHeadDim, kHeads>,
         {.blocks = work.items(p.kv.kv_heads),
          .threads = kThreads<kHeads>,
          .shared_bytes = TileShape<kHeadDim>::kBytes,
          .early = true},
         on, tile_queries(p), cache_map(p.kv, p.kv.keys), cache_map(p.kv, p.kv.values), p, work,
         parts_in(p, p.scratch));
}

template <int kHeadDim>
void attend_shared_of(const AttentionParams& p, const Execution& on) {
  const bool is_odd = p.heads / p.kv.kv_heads % 2 != 0;
  if (is_odd || p.num_shared * p.heads <= gpu_of(on).multiprocessors())
    attend_heads<kHeadDim, 1>(p, on);
  else
    attend_heads<kHeadDim, 2>(p, on);
}

}  // namespace

bool shared_can(const AttentionParams& p) {
  return p.num_shared > 0 && p.scratch && p.window == 0 && p.out.type == DType::bf16 &&
         tiles_can(p.kv.head_dim) && p.kv.head_dim <= 128 && !single_reads_stored(p.kv) &&
         parts_in(p, p.scratch).room > 0;
}

void attend_shared(const AttentionParams& p, const Execution& on) {
  switch (p.kv.head_dim) {
    case 64:
      return attend_shared_of<64>(p, on);
    case 80:
      return attend_shared_of<80>(p, on);
    case 96:
      return attend_shared_of<96>(p, on);
    default:
      return attend_shared_of<128>(p, on);
  }
}

}  // namespace invar::cuda
