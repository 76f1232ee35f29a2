// Attention of tiles of rows that share a block table: prompts (order `hopper`, numerics 4).
//
// A block takes 64 rows of two query heads of a key/value head, or 128 rows of one, a warpgroup
// each. One warp fetches keys and values split by split. While the tensor cores multiply a split's
// second half of values and the next split's keys, the warpgroups compute probabilities. Heads of
// 256 have another order of work (attention_wide.cuh).
#include "kernels/cuda/attention_quotients.cuh"
#include "kernels/cuda/attention_tasks.cuh"
#include "kernels/cuda/attention_wide.cuh"

namespace invar::cuda {

namespace {

// ---- The warp that fetches

__device__ __forceinline__ int warp_lowest(int x) {
  return __reduce_min_sync(kAllLanes, x);
}
__device__ __forceinline__ int warp_highest(int x) {
  return __reduce_max_sync(kAllLanes, x);
}

// The first row of a table of many, by a whole warp: as many rows of few stand before it as are in
// their places in the list of these.
__device__ int first_of_many(const AttentionParams& p) {
  if (!p.few_rows || p.fewest_rows >= kManyRows) return 0;  // there is none, as the host knows
  const int lane = threadIdx.x;
  int low = 0, end = p.few_rows[0];  // it is between them
  while (low < end) {
    const int step = (end - low + kWarp - 1) / kWarp, row = low + lane * step;
    const bool is_before = row < end && p.few_rows[1 + row] == row;
    const int count = __popc(__ballot_sync(kAllLanes, is_before));
    if (count == 0) return low;
    end = min(end, low + count * step);
    low += (count - 1) * step + 1;
  }
  return low;
}

template <int kHeadDim>
__device__ void fetch(const AttentionParams& p, const TileWork& work, const CUtensorMap& queries,
                      const CUtensorMap& keys, const CUtensorMap& values, uint32_t base, Task& task,
                      Ring key_ring, Ring value_ring, Ring task_ring) {
  using S = TileShape<kHeadDim>;
  const int lane = threadIdx.x, groups = p.kv.kv_heads, per_group = p.heads / groups;
  const int first_row = first_of_many(p), blocks = gridDim.x;
  const int tiles = (static_cast<int>(p.rows) - first_row + work.tile_rows - 1) / work.tile_rows,
            items = tiles * work.pairs * groups;
  for (int turn = 0; turn * blocks < items; ++turn) {
    const int slot = static_cast<int>(turn % 2 ? blocks - 1 - blockIdx.x : blockIdx.x);
    const int item = turn * blocks + slot;
    if (item >= items) continue;
    const int group = item % groups, job = item / groups;
    const int64_t t0 = first_row + int64_t{tiles - 1 - job / work.pairs} * work.tile_rows;
    const int rows = static_cast<int>(t0 + work.tile_rows < p.rows ? work.tile_rows : p.rows - t0);
    const int heads_at_once = work.tile_rows == 64 ? 2 : 1;
    const int head = group * per_group + job % work.pairs * heads_at_once;
    // All at once: what is read one after the other here delays the tile's first keys.
    int position[kMaxTileRows / kWarp];
#pragma unroll
    for (int n = 0; n < kMaxTileRows / kWarp; ++n)
      position[n] = p.positions[t0 + min(n * kWarp + lane, rows - 1)];
    for (int begin = 0; begin < rows;) {
      const int32_t table = p.table_of[t0 + begin];
      int end = rows;
      for (int i = begin + 1 + lane; i < rows; i += kWarp)
        if (p.table_of[t0 + i] != table && i < end) end = i;
      end = warp_lowest(end);
      if (end - begin < kManyRows && !has_many_rows(p, t0 + begin)) {
        begin = end;
        continue;
      }
      int lowest = INT32_MAX, highest = -1, all_from = 0, all_to = INT32_MAX;
      int first[kMaxTileRows / kWarp], last[kMaxTileRows / kWarp];
#pragma unroll
      for (int n = 0; n < kMaxTileRows / kWarp; ++n) {
        const int row = n * kWarp + lane;
        first[n] = 0;
        last[n] = -1;
        if (row < begin || row >= end) continue;
        last[n] = position[n];
        if (p.window > 0 && last[n] >= p.window) first[n] = last[n] - p.window + 1;
        lowest = min(lowest, first[n]);
        highest = max(highest, last[n]);
        all_from = max(all_from, first[n]);
        all_to = min(all_to, last[n]);
      }
      lowest = warp_lowest(lowest);
      highest = warp_highest(highest);
      all_from = warp_highest(all_from);
      all_to = warp_lowest(all_to);
      const int split = lowest / kSplitSlots, splits = highest / kSplitSlots + 1 - split;
      // Blocks outside of the rows' slots need not exist: the nearest that does is read instead.
      const int32_t* blocks = p.tables[table];
      const int block_size = p.kv.block_size, per_split = kSplitSlots / block_size;
      const int first_page = lowest / block_size, last_page = highest / block_size;
      const auto number = [&](int page) { return blocks[min(max(page, first_page), last_page)]; };
      int window = number(split * per_split + lane);
      barrier_wait(task_ring.empty, task_ring.parity ^ 1);
#pragma unroll
      for (int n = 0; n < kMaxTileRows / kWarp; ++n) {
        task.first[n * kWarp + lane] = first[n];
        task.last[n * kWarp + lane] = last[n];
      }
      if (lane == 0) {
        task.first_row = t0;
        task.head = head;
        task.split = split;
        task.splits = splits;
        task.all_from = all_from;
        task.all_to = all_to;
      }
      __syncwarp();
      wait_for_kernels_before();  // tables and positions were there before the step began
      if (lane == 0) {
        barrier_expect(task_ring.full, 2 * S::kQueryBytes);
        for (int w = 0; w < 2; ++w)
          for (int c = 0; c < S::kBoxes; ++c)
            load_box(base + w * S::kQueryBytes + c * 64 * 128, queries, c * 64,
                     head + (heads_at_once == 2 ? w : 0),
                     static_cast<int>(t0) + (heads_at_once == 2 ? 0 : w * 64), task_ring.full);
      }
      task_ring.parity ^= 1;

      for (int i = 0; i < splits; ++i) {
        const int at = i * per_split % kWarp;
        if (at == 0 && i > 0) window = number((split + i) * per_split + lane);
        for (int which = 0; which < 2; ++which) {
          Ring& ring = which ? value_ring : key_ring;
          const CUtensorMap& map = which ? values : keys;
          const uint32_t to =
              base + (which ? S::kValuesAt : S::kKeysAt) + ring.stage * S::kStageBytes;
          barrier_wait(ring.empty_now(), ring.parity ^ 1);
          if (lane == 0) barrier_expect(ring.full_now(), S::kStageBytes);
          for (int j = 0; j < per_split; ++j) {
            const int block = __shfl_sync(kAllLanes, window, at + j);
            if (lane == 0)
              for (int c = 0; c < S::kBoxes; ++c)
                load_box(to + c * kBoxBytes + j * block_size * 128, map, c * 64, 0,
                         block * groups + group, ring.full_now());
          }
          ring.next();
        }
      }
      begin = end;
    }
  }
  wait_for_kernels_before();  // blocks without a task have to, too
  barrier_wait(task_ring.empty, task_ring.parity ^ 1);
  if (lane == 0) {
    task.splits = 0;
    barrier_arrive(task_ring.full);
  }
}

// ---- The warpgroups

// Ends and writes a lane's two rows of a head, whose columns come in parts, the first ones first.
class TileRows {
 public:
  __device__ TileRows(const AttentionParams& p, const TileWork& work, RowState& state,
                      const RowRange& range, int64_t t, int head, int lane)
      : p_(p), state_(state), t_(t), head_(head), lane_(lane) {
    for (int r = 0; r < 2; ++r) wanted_[r] = range.last[r] >= 0;
    if (work.max && lane % 4 == 0)
      for (int r = 0; r < 2; ++r) {
        if (!wanted_[r]) continue;
        work.max[(t + 8 * r) * p.heads + head] = state.max[r];
        work.sum[(t + 8 * r) * p.heads + head] = state.sum[r];
      }
    if (p.sinks) state.join(p.sinks, head);
  }

  template <int... kValues>
  __device__ void write_all(float (&... parts)[kValues]) {
    if (p_.sinks) (shrink(parts, state_), ...);
    float low = std::numeric_limits<float>::infinity(), high = 0.0f;
    (range_of(parts, low, high), ...);
    const bool is_tame =
        __all_sync(kAllLanes, low > 0x1p-70f && high < 0x1p100f && state_.sum[0] < 0x1p30f &&
                                  state_.sum[1] < 0x1p30f);
    bf16_t* first =
        static_cast<bf16_t*>(p_.out.data) + t_ * p_.out.stride + int64_t{head_} * p_.kv.head_dim;
    (write_part(parts, first, is_tame), ...);
    if (head_ == p_.heads - 1)
      for (int r = 0; r < 2; ++r)
        if (wanted_[r]) clear_padding(p_, t_ + 8 * r, lane_ % 4, 4);
  }

 private:
  template <int kValues>
  __device__ void write_part(const float (&part)[kValues], bf16_t*& first, bool is_tame) const {
    bf16_t* const to[2] = {first, first + 8 * p_.out.stride};
    is_tame ? write_tame(part, state_, to, lane_, wanted_)
            : write(part, state_, to, lane_, wanted_);
    first += 2 * kValues;
  }

  const AttentionParams& p_;
  RowState& state_;
  const int64_t t_;
  const int head_, lane_;
  bool wanted_[2];
};

template <int kHeadDim>
__device__ void attend(const AttentionParams& p, const TileWork& work, uint32_t base,
                       const Task& task, const TileRings& rings) {
  if constexpr (kHeadDim == kWideHead) {
    attend_wide_tasks(
        work, base, task, rings.keys, rings.values, rings.tasks,
        [&](WideOutputs& out, RowState& state, const RowRange& range, int64_t t, int head,
            int lane) {
          TileRows(p, work, state, range, t, head, lane).write_all(out[0], out[1], out[2], out[3]);
        });
  } else {
    attend_tasks<kHeadDim, 2>(work, base, task, rings.keys, rings.values, rings.tasks,
                              [&](auto& out, auto& out2, RowState& state, const RowRange& range,
                                  int64_t t, int head, int lane) {
                                TileRows rows(p, work, state, range, t, head, lane);
                                if constexpr (TileShape<kHeadDim>::kSecond > 0)
                                  rows.write_all(out, out2);
                                else
                                  rows.write_all(out);
                              });
  }
}

template <int kHeadDim>
__global__ __launch_bounds__(kTileThreads,
                             1) void tiles_kernel(const __grid_constant__ CUtensorMap queries,
                                                  const __grid_constant__ CUtensorMap keys,
                                                  const __grid_constant__ CUtensorMap values,
                                                  const AttentionParams p, const TileWork work) {
  using S = TileShape<kHeadDim>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), bars = base + S::kBarsAt;
  Task& task = *reinterpret_cast<Task*>(shared + S::kTaskAt);
  const TileRings rings(bars, 2, S::kStages);
  let_next_kernel_start();
  if (__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128, 0) == 0) {
    fewer_registers<24>();
    if (threadIdx.x < kWarp)
      fetch<kHeadDim>(p, work, queries, keys, values, base, task, rings.keys, rings.values,
                      rings.tasks);
  } else {
    more_registers<240>();
    attend<kHeadDim>(p, work, base, task, rings);
  }
}

template <int kHeadDim>
void attend_tiles_of(const AttentionParams& p, const Execution& on, float* max, float* sum) {
  using S = TileShape<kHeadDim>;
  const int per_group = p.heads / p.kv.kv_heads;
  TileWork work = {};
  work.tile_rows = per_group % 2 == 0 ? 64 : 128;
  work.scale = score_scale(p);
  work.max = max;
  work.sum = sum;
  work.tiles = static_cast<int>((p.rows + work.tile_rows - 1) / work.tile_rows);
  work.pairs = per_group % 2 == 0 ? per_group / 2 : per_group;
  const LaunchShape shape = {
      .blocks = std::min(work.items(p.kv.kv_heads), gpu_of(on).multiprocessors()),
      .threads = kTileThreads,
      .shared_bytes = S::kBytes,
      .early = true};
  launch("attending", tiles_kernel<kHeadDim>, shape, on, tile_queries(p),
         cache_map(p.kv, p.kv.keys), cache_map(p.kv, p.kv.values), p, work);
}

}  // namespace

bool tiles_can(int head_dim) {
  return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128 ||
         head_dim == kWideHead;
}

void attend_tiles(const AttentionParams& p, const Execution& on, float* max, float* sum) {
  switch (p.kv.head_dim) {
    case 64:
      return attend_tiles_of<64>(p, on, max, sum);
    case 80:
      return attend_tiles_of<80>(p, on, max, sum);
    case 96:
      return attend_tiles_of<96>(p, on, max, sum);
    case kWideHead:
      return attend_tiles_of<kWideHead>(p, on, max, sum);
    default:
      return attend_tiles_of<128>(p, on, max, sum);
  }
}

CUtensorMap tile_queries(const AttentionParams& p) {
  const uint64_t row = static_cast<uint64_t>(round_up(p.kv.head_dim, 32)) * sizeof(bf16_t);
  return tensor_map<3>(
      p.q, {.sizes = {static_cast<uint64_t>(p.kv.head_dim), static_cast<uint64_t>(p.heads),
                      static_cast<uint64_t>(p.rows)},
            .strides = {row, row * p.heads},
            .box = {64, 1, 64}});
}

CUtensorMap cache_map(const KvLayer& kv, const bf16_t* data) {
  constexpr uint64_t kAnyBlocks = uint64_t{1} << 31;  // a table names only blocks that exist
  const uint64_t row = static_cast<uint64_t>(kv.row_elements()) * sizeof(bf16_t),
                 slots = static_cast<uint64_t>(kv.block_size);
  return tensor_map<3>(data, {.sizes = {static_cast<uint64_t>(kv.head_dim), slots, kAnyBlocks},
                              .strides = {row, row * slots},
                              .box = {64, static_cast<uint32_t>(kv.block_size), 1}});
}

}  // namespace invar::cuda
