// A warpgroup of attention_backward_tiles.cu: it computes the weights of its rows' tiles again and
// sums over them.
#pragma once

#include "kernels/cuda/attention_backward_fetch.cuh"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/wgmma_values.cuh"

namespace invar::cuda::backward_tiles {

// The tensor cores have written these: nobody looks at them before.
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

}  // namespace invar::cuda::backward_tiles
