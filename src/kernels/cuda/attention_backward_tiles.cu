// The backward of attention (numerics 9) in order `hopper`, on the warpgroups' tensor cores: heads
// of 64 and of 128 elements.
//
// A block owns 128 rows of one sequence, 64 for each of two warpgroups, and one warp fetches what
// they meet in tiles of 64 rows. For dk and dv the owned rows are slots, which meet the queries of
// their heads; for dq they are queries, which meet slots. Both compute the weights again: dq's sum
// over slots has one order, which blocks that own slots cannot keep without waiting for each other.
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/training_operations.h"
#include "kernels/cuda/wgmma_values.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 384, kWarpgroups = 2, kStages = 4;
constexpr int kTile = 64;                    // rows of a warpgroup, and of what they meet
constexpr int kOwned = kWarpgroups * kTile;  // rows of a block
constexpr int kBoxBytes = kTile * 128;       // 64 columns of a tile
constexpr int kRowValueBytes = kTile * sizeof(float4);

enum class Owns { slots, queries };

// What owned rows and tiles are made of, each a head's queries and their d_out, or its keys and
// values; then the values of the tile's queries.
template <int kHeadDim>
struct Shape {
  static constexpr int kBoxes = kHeadDim / 64, kSteps = kHeadDim / 16;
  static constexpr int kTensorBytes = kBoxes * kBoxBytes, kPairBytes = 2 * kTensorBytes;
  static constexpr int kStageBytes = kPairBytes + kRowValueBytes;
  static constexpr int kRingAt = kWarpgroups * kPairBytes,
                       kTaskAt = kRingAt + kStages * kStageBytes, kBarsAt = kTaskAt + 64,
                       kBytes = kBarsAt + 16 * (kStages + 1);
};

// What the warpgroups do next.
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

// ---- D and the sums of the forward

// A warp has a query of a head.
__global__ __launch_bounds__(256) void row_values_kernel(const __grid_constant__ Backward of) {
  const AttentionParams& f = of.p.forward;
  const int64_t item = int64_t{blockIdx.x} * 8 + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (item >= f.rows * f.heads) return;
  const int64_t row = item / f.heads;
  const int head = static_cast<int>(item % f.heads), words = f.kv.head_dim / 2;
  const auto at = [&](const Activation& a) {
    return reinterpret_cast<const uint32_t*>(static_cast<const bf16_t*>(a.data) + row * a.stride) +
           int64_t{head} * words;
  };
  const uint32_t *x = at(of.p.d_out), *y = at(f.out);
  // sum64; elements 2 * lane and the next of each 64 are this lane's.
  float even = 0.0f, odd = 0.0f;
  for (int w = lane; w < words; w += kWarp) {
    even = __fmaf_rn(__uint_as_float(x[w] << 16), __uint_as_float(y[w] << 16), even);
    odd = __fmaf_rn(__uint_as_float(x[w] & 0xffff0000), __uint_as_float(y[w] & 0xffff0000), odd);
  }
  const float mean = halve64_of_pairs(even, odd);
  if (lane == 0) *of.row_values(row, head) = {of.p.max[item], 1.0f / of.p.sum[item], mean, 0.0f};
}

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
__device__ int64_t end_of_sequence(const AttentionParams& p, int64_t row) {
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

// ---- The warpgroups

// What the tensor cores wrote is looked at only from here on.
template <int kValues>
__device__ __forceinline__ void are_there(float (&x)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// The sums of 64 rows over tiles: [row][element of the head], as steps leave them.
template <int kHeadDim>
struct RowSums {
  static constexpr int kHalves = kHeadDim / 64;
  float of[kHalves][32];

  __device__ void clear() {
#pragma unroll
    for (auto& half : of)
#pragma unroll
      for (float& x : half) x = 0.0f;
  }
  // Goes on with steps of weights and the rows of a tile at `tile`.
  __device__ __forceinline__ void add(const uint32_t (&weights)[4][4], uint32_t tile) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const uint64_t rows = describe_columns(tile + half * kBoxBytes);
#pragma unroll
      for (int k = 0; k < 4; ++k) values_step<64>(of[half], weights[k], rows + k * 128, 1);
    }
  }
  // The + 0 behind the chain of a head.
  __device__ void end_head() {
#pragma unroll
    for (auto& half : of) {
      are_there(half);
#pragma unroll
      for (float& x : half) x = x + 0.0f;
    }
  }
  // To the rows from `to` on, as far as they are wanted.
  __device__ void write(float* to, int64_t stride, const bool (&wanted)[2], int lane) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int x = 0; x < 8; ++x)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (wanted[r])
            *reinterpret_cast<float2*>(to + 8 * r * stride + half * 64 + x * 8 + lane % 4 * 2) = {
                of[half][4 * x + 2 * r], of[half][4 * x + 2 * r + 1]};
  }
};

// The products of 64 owned rows and a tile's: s and dp, [owned row][row of the tile].
template <int kHeadDim>
__device__ __forceinline__ void multiply(float (&d)[32], uint32_t owned, uint32_t tile) {
  const uint64_t a = describe_rows(owned), b = describe_rows(tile);
#pragma unroll
  for (int k = 0; k < Shape<kHeadDim>::kSteps; ++k)
    product_step<kTile>(d, a + k / 4 * (kBoxBytes / 16) + k % 4 * 2,
                        b + k / 4 * (kBoxBytes / 16) + k % 4 * 2, k != 0);
}

__device__ __forceinline__ void pack(const float (&x)[32], uint32_t (&words)[4][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) words[i / 4][i % 4] = pack_bf16(x[2 * i], x[2 * i + 1]);
}

template <int kHeadDim, Owns owns>
class Warpgroup {
 public:
  using S = Shape<kHeadDim>;

  __device__ Warpgroup(const Backward& of, const unsigned char* shared, Ring ring, Ring task_ring)
      : of_(of),
        p_(of.p.forward),
        shared_(shared),
        base_(shared_address(shared)),
        ring_(ring),
        task_ring_(task_ring),
        number_(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128 - 1, 0)),
        lane_(threadIdx.x % kWarp),
        own_(number_ * kTile + static_cast<int>(threadIdx.x) % 128 / kWarp * 16 + lane_ / 4) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      barrier_wait(task_ring_.full, task_ring_.parity);
      task_ring_.parity ^= 1;
      const Task task = *reinterpret_cast<const Task*>(shared_ + S::kTaskAt);
      if (task.tiles == 0) return;
      compute(task);
    }
  }

 private:
  // Tiles of which some weight is not zero: [begin, end).
  struct Range {
    int begin, end;
  };
  __device__ Range range_of(const Task& task) const {
    const int a = task.position + number_ * kTile;  // the first owned position
    if (a >= task.size) return {0, 0};
    Range range = {0, task.tiles};
    const auto position = [&](int i) { return task.first + i * kTile; };
    if constexpr (owns == Owns::slots) {
      while (position(range.begin) + kTile <= a) ++range.begin;
      if (p_.window > 0)
        while (range.end > range.begin && position(range.end - 1) >= a + kTile - 1 + p_.window)
          --range.end;
    } else {
      while (position(range.end - 1) > a + kTile - 1) --range.end;
      if (p_.window > 0)
        while (range.begin < range.end && position(range.begin) + kTile - 1 <= a - p_.window)
          ++range.begin;
    }
    return range;
  }

  __device__ __forceinline__ void release(const Ring& ring) const {
    if (lane_ == 0) barrier_arrive(ring.empty_now());
  }
  __device__ void skip(int count) {
    for (int i = 0; i < count; ++i) {
      barrier_wait(ring_.full_now(), ring_.parity);
      release(ring_);
      ring_.next();
    }
  }
  __device__ __forceinline__ uint32_t tile_at(const Ring& ring) const {
    return base_ + S::kRingAt + __shfl_sync(kAllLanes, ring.stage, 0) * S::kStageBytes;
  }

  __device__ __forceinline__ void compute(const Task& task) {
    RowSums<kHeadDim> first, second;  // dk and dv; or dq
    first.clear();
    if constexpr (owns == Owns::slots) second.clear();
    const bool wanted[2] = {task.position + own_ < task.size, task.position + own_ + 8 < task.size};
    float4 of_rows[2] = {};  // of owned queries
    if constexpr (owns == Owns::queries) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (wanted[r]) of_rows[r] = *of_.row_values(task.row + own_ + 8 * r, task.head);
    }
    const Range range = range_of(task);
    const int heads = owns == Owns::slots ? p_.heads / p_.kv.kv_heads : 1;
#pragma unroll 1
    for (int h = 0; h < heads; ++h) {
      skip(range.begin);
      if (range.begin < range.end) go_through(task, range, of_rows, first, second);
      first.end_head();
      if constexpr (owns == Owns::slots) second.end_head();
      skip(task.tiles - range.end);
    }
    if (lane_ == 0) barrier_arrive(task_ring_.empty);
    const auto to = [&](int head) {
      return of_.p.d_qkv + (task.row + own_) * of_.p.d_qkv_stride + int64_t{head} * kHeadDim;
    };
    if constexpr (owns == Owns::slots) {
      first.write(to(p_.heads + task.head), of_.p.d_qkv_stride, wanted, lane_);
      second.write(to(p_.heads + p_.kv.kv_heads + task.head), of_.p.d_qkv_stride, wanted, lane_);
    } else {
      first.write(to(task.head), of_.p.d_qkv_stride, wanted, lane_);
    }
  }

  // While the tensor cores multiply a tile's d_out and values, the warpgroup computes p; what they
  // sum hides the other warpgroup's weights.
  __device__ __forceinline__ void go_through(const Task& task, const Range& range,
                                             const float4 (&of_rows)[2], RowSums<kHeadDim>& first,
                                             RowSums<kHeadDim>& second) {
    float s[32], dp[32];
    [[maybe_unused]] uint32_t p_words[4][4];
    uint32_t ds_words[4][4];
    const uint32_t owned = base_ + number_ * S::kPairBytes;
    int position = task.first + range.begin * kTile;
    // From s of the tile to its sums, which the tensor cores begin.
    const auto add_tile = [&] {
      const uint32_t tile = tile_at(ring_);
      const float4* of_tile =
          reinterpret_cast<const float4*>(shared_ + (tile - base_) + S::kPairBytes) + lane_ % 4 * 2;
      are_there(s);
      steps_begin();
      multiply<kHeadDim>(dp, owned + S::kTensorBytes, tile + S::kTensorBytes);
      steps_commit();
      weigh(task, position, of_rows, of_tile, s);
      if constexpr (owns == Owns::slots) pack(s, p_words);
      steps_wait<0>();
      are_there(dp);
#pragma unroll
      for (int x = 0; x < 32; ++x) {
        const float mean =
            owns == Owns::slots ? of_tile[x / 4 * 8 + x % 2].z : of_rows[x / 2 % 2].z;
        dp[x] = (s[x] * ((dp[x] + 0.0f) - mean)) * of_.scale;
      }
      mask(task, position, dp);
      pack(dp, ds_words);
      steps_begin();
      first.add(ds_words, tile);
      if constexpr (owns == Owns::slots) second.add(p_words, tile + S::kTensorBytes);
      steps_commit();
      position += kTile;
    };
    barrier_wait(ring_.full_now(), ring_.parity);
    steps_begin();
    multiply<kHeadDim>(s, owned, tile_at(ring_));
    steps_commit();
    steps_wait<0>();
#pragma unroll 1
    for (int i = range.begin + 1; i < range.end; ++i) {
      add_tile();
      Ring next = ring_;
      next.next();
      barrier_wait(next.full_now(), next.parity);
      steps_begin();
      multiply<kHeadDim>(s, owned, tile_at(next));
      steps_commit();
      steps_wait<0>();
      release(ring_);
      ring_ = next;
    }
    add_tile();
    steps_wait<0>();
    release(ring_);
    ring_.next();
  }

  // Zeros where no weight is, also of a product with infinity.
  __device__ __forceinline__ void mask(const Task& task, int position, float (&x)[32]) const {
    const int a = task.position + number_ * kTile;  // the first owned position
    const int window = p_.window > 0 ? p_.window : INT32_MAX / 2;
    if constexpr (owns == Owns::slots) {
      if (position >= a + kTile - 1 && position + kTile <= task.size &&
          position + kTile - 1 < a + window)
        return;
    } else {
      if (position + kTile - 1 <= a && position > a + kTile - 1 - window) return;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int own = task.position + own_ + i / 2 % 2 * 8;
      const int met = position + i / 4 * 8 + lane_ % 4 * 2 + i % 2;
      const int query = owns == Owns::slots ? met : own, slot = owns == Owns::slots ? own : met;
      const bool is_valid = query < task.size && slot <= query && slot > query - window;
      x[i] = is_valid ? x[i] : 0.0f;
    }
  }

  // s becomes p.
  __device__ __forceinline__ void weigh(const Task& task, int position, const float4 (&of_rows)[2],
                                        const float4* of_tile, float (&s)[32]) const {
    bool is_tame = true;
#pragma unroll
    for (int x = 0; x < 32; x += 8) {
      float minus[8], by_sum[8], t[8];
#pragma unroll
      for (int q = 0; q < 8; ++q) {
        const float4 values =
            owns == Owns::slots ? of_tile[(x + q) / 4 * 8 + q % 2] : of_rows[q / 2 % 2];
        minus[q] = -values.x;
        by_sum[q] = values.y;
        // Below 2^29 the rounding of M cannot make an argument of 128.
        is_tame = is_tame && fabsf(values.x) < 0x1p29f;
        t[q] = __fmaf_rn(s[x + q] + 0.0f, of_.factor, minus[q]);
      }
      if (__all_sync(kAllLanes, is_tame)) {
        exponentials_of<true>(t);
      } else {
#pragma unroll
        for (float& y : t) y = math::exp2(y);
      }
#pragma unroll
      for (int q = 0; q < 8; ++q) s[x + q] = t[q] * by_sum[q];
    }
    mask(task, position, s);
  }

  const Backward& of_;
  const AttentionParams& p_;
  const unsigned char* shared_;
  const uint32_t base_;
  Ring ring_, task_ring_;
  const int number_, lane_, own_;
};

template <int kHeadDim, Owns owns>
__global__ __launch_bounds__(kThreads,
                             1) void tiles_backward_kernel(const __grid_constant__ Backward of,
                                                           const __grid_constant__ Maps maps) {
  using S = Shape<kHeadDim>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t bars = shared_address(shared) + S::kBarsAt;
  const Ring ring{bars, bars + 8 * kStages, kStages},
      tasks{bars + 16 * kStages, bars + 16 * kStages + 8, 1};
  if (threadIdx.x == 0) {
    ring.init(4 * kWarpgroups);
    tasks.init(4 * kWarpgroups);
  }
  __syncthreads();
  if (__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128, 0) == 0) {
    fewer_registers<24>();
    if (threadIdx.x < kWarp) Fetcher<kHeadDim, owns>(of, maps, shared, ring, tasks).run();
  } else {
    more_registers<240>();
    Warpgroup<kHeadDim, owns>(of, shared, ring, tasks).run();
  }
}

// Keys or values, boxes of 64 columns and of a block's slots or of a tile's.
CUtensorMap slots_map(const KvLayer& kv, const bf16_t* data) {
  constexpr uint64_t kAnyBlocks = uint64_t{1} << 31;  // a table names only blocks that exist
  const uint64_t row = static_cast<uint64_t>(kv.row_elements()) * sizeof(bf16_t),
                 slots = static_cast<uint64_t>(kv.block_size);
  const uint32_t count = static_cast<uint32_t>(std::min(kv.block_size, kTile));
  return tensor_map<3>(data, {.sizes = {static_cast<uint64_t>(kv.head_dim), slots, kAnyBlocks},
                              .strides = {row, row * slots},
                              .box = {64, count, 1}});
}

CUtensorMap d_out_map(const AttentionBackwardParams& p) {
  const uint64_t head = static_cast<uint64_t>(p.forward.kv.head_dim) * sizeof(bf16_t);
  return tensor_map<3>(
      p.d_out.data,
      {.sizes = {static_cast<uint64_t>(p.forward.kv.head_dim),
                 static_cast<uint64_t>(p.forward.heads), static_cast<uint64_t>(p.forward.rows)},
       .strides = {head, static_cast<uint64_t>(p.d_out.stride) * sizeof(bf16_t)},
       .box = {64, 1, kTile}});
}

template <int kHeadDim>
void launch_tiles(const Backward& of, const Execution& on) {
  const AttentionParams& f = of.p.forward;
  const Maps maps{tile_queries(f), d_out_map(of.p), slots_map(f.kv, f.kv.keys),
                  slots_map(f.kv, f.kv.values)};
  const LaunchShape of_rows{static_cast<int>((f.rows * f.heads + 7) / 8), 256, 0};
  launch("the sums of attention's backward", row_values_kernel, of_rows, on, of);
  const LaunchShape shape{gpu_of(on).multiprocessors(), kThreads, Shape<kHeadDim>::kBytes};
  launch("the gradients of keys", tiles_backward_kernel<kHeadDim, Owns::slots>, shape, on, of,
         maps);
  launch("the gradients of queries", tiles_backward_kernel<kHeadDim, Owns::queries>, shape, on, of,
         maps);
}

}  // namespace

bool backward_tiles_can(const AttentionBackwardParams& p) {
  const AttentionParams& f = p.forward;
  return (f.kv.head_dim == 64 || f.kv.head_dim == 128) && f.kv.layout == CacheLayout::rows &&
         p.d_qkv_stride % 4 == 0 && p.d_out.stride % 8 == 0;
}

void attention_backward_tiles(const AttentionBackwardParams& p, const Execution& on) {
  const Backward of{p, score_scale(p.forward).factor, gradient_scale(p.forward)};
  p.forward.kv.head_dim == 64 ? launch_tiles<64>(of, on) : launch_tiles<128>(of, on);
}

}  // namespace invar::cuda
