// A row of logits that a cluster of 8 blocks keeps in its shared memory, and what may be asked of
// it; see sample.cu.
#pragma once

#include <cooperative_groups.h>

#include <limits>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/sample.h"
#include "numerics/noise.h"

namespace invar::cuda {
namespace cg = cooperative_groups;

constexpr int kBlocks = 8, kThreads = 512, kWarps = kThreads / kWarp, kBins = 2048;
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kExcluded = -kInfinity;

// Ranks: smaller is preferred; larger values first, ties by the lower id.
constexpr int kIdBits = 20;
__device__ __forceinline__ uint64_t rank_of(float value, int token) {
  const uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);
  const uint32_t ascending = bits & 0x80000000 ? ~bits : bits | 0x80000000;
  return uint64_t{~ascending} << kIdBits | static_cast<uint32_t>(token);
}

struct Best {
  double score;
  int token;  // -1: none
  __device__ void offer(double other_score, int other) {
    if (other < 0) return;
    if (token < 0 || other_score > score || (other_score == score && other < token)) {
      score = other_score;
      token = other;
    }
  }
};

// What the blocks of a cluster tell each other, and what the threads of one do.
struct Shared {
  alignas(16) uint32_t bins[2 * kBins];  // sums: their lower words, then their upper ones
  uint64_t warp_sums[kWarps];
  Best warp_best[kWarps];
  Best best;          // of the block
  float sum;          // of the block's segment
  int nan, any_left;  // of the block
  uint64_t edge, before;
  bool found, is_whole;  // whether there is an edge; whether all of its bin is before the target
  int count;
  uint64_t top[kMostTop];  // ranks; block 0's counts
};

class Row {
 public:
  __device__ Row(const SampleRowsParams& p, float* values, Shared& shared)
      : cluster_(cg::this_cluster()),
        logits_(p.logits + blockIdx.x / kBlocks * p.vocab),
        values_(values),
        shared_(shared) {
    const int length = static_cast<int>(64 * ((p.vocab + 511) / 512));
    const int vocab = static_cast<int>(p.vocab);
    length_ = length;
    first_ = min(vocab, static_cast<int>(cluster_.block_rank()) * length);
    size_ = min(vocab - first_, length);
  }

  // Whether no logit is NaN.
  __device__ bool load() {
    bool nan = false;
#pragma unroll 8
    for (int i = threadIdx.x; i < size_; i += kThreads) {
      const float x = logits_[first_ + i];
      nan = nan || x != x;
      values_[i] = x;
    }
    nan = __syncthreads_or(nan);
    if (threadIdx.x == 0) shared_.nan = nan;
    cluster_.sync();
    for (int b = 0; b < kBlocks; ++b) nan = nan || cluster_.map_shared_rank(&shared_, b)->nan;
    return !nan;
  }

  // f(value, token) for this block's tokens; what it returns is kept when it is a float.
  template <typename F>
  __device__ void each(F f) const {
    for (int i = threadIdx.x; i < size_; i += kThreads) f(values_[i], first_ + i);
  }
  __device__ bool has(int token) const {
    return token >= first_ && token < first_ + size_;
  }
  __device__ float& at(int token) {
    return values_[token - first_];
  }

  // The best of all blocks' offers, each thread's own one.
  __device__ Best best_of_all(Best mine) {
    for (int apart = kWarp / 2; apart >= 1; apart /= 2)
      mine.offer(__shfl_xor_sync(kAllLanes, mine.score, apart),
                 __shfl_xor_sync(kAllLanes, mine.token, apart));
    if (threadIdx.x % kWarp == 0) shared_.warp_best[threadIdx.x / kWarp] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < kWarps; ++w)
        mine.offer(shared_.warp_best[w].score, shared_.warp_best[w].token);
      shared_.best = mine;
    }
    cluster_.sync();
    Best all = cluster_.map_shared_rank(&shared_, 0)->best;
    for (int b = 1; b < kBlocks; ++b) {
      const Best other = cluster_.map_shared_rank(&shared_, b)->best;
      all.offer(other.score, other.token);
    }
    cluster_.sync();  // the next one writes there
    return all;
  }
  __device__ Best largest() {
    Best mine{0, -1};
    each([&](float x, int token) { mine.offer(x, token); });
    return best_of_all(mine);
  }

  // The sum over all blocks of a thread's integers.
  __device__ uint64_t sum_of_all(uint64_t mine) {
    for (int apart = kWarp / 2; apart >= 1; apart /= 2)
      mine += __shfl_xor_sync(kAllLanes, mine, apart);
    if (threadIdx.x % kWarp == 0) shared_.warp_sums[threadIdx.x / kWarp] = mine;
    cluster_.sync();
    uint64_t all = 0;
    for (int b = 0; b < kBlocks; ++b)
      for (int w = 0; w < kWarps; ++w) all += cluster_.map_shared_rank(&shared_, b)->warp_sums[w];
    cluster_.sync();
    return all;
  }

  // The first `count` tokens in order of preference are those up to this rank; all that are not
  // excluded where they are fewer.
  __device__ uint64_t rank_of_first(int count, float max) {
    return narrow(
        count, max, [](float) { return uint64_t{1}; }, true);
  }
  // The rank of the token at which the sum of weights, in order of preference, reaches `target`.
  // The largest number where it never does. REQUIRES: target >= 1.
  template <typename Weight>
  __device__ uint64_t rank_where_sum_reaches(uint64_t target, float max, Weight weight) {
    return narrow(target, max, weight, false);
  }

  // -inf for every token that comes after `rank`.
  __device__ void exclude_after(uint64_t rank) {
    each([&](float& x, int token) {
      if (x != kExcluded && rank_of(x, token) > rank) x = kExcluded;
    });
  }

  // log_sum of numerics 3, of the values as they are.
  __device__ float log_sum(float max) {
    float* lanes = reinterpret_cast<float*>(shared_.bins);
    const int tid = threadIdx.x;
    __syncthreads();
    // 64 lanes add in order; the others compute what they add, so many at a time.
    constexpr int kAhead = 2 * kBins / 64;
    float lane = 0.0f;
    for (int begin = 0; begin < size_; begin += kAhead * 64) {
      const int count = min(kAhead * 64, size_ - begin);
      for (int i = tid; i < count; i += kThreads) lanes[i] = math::exp(values_[begin + i] - max);
      __syncthreads();
      if (tid < 64) {
#pragma unroll 8
        for (int i = tid; i < count; i += 64) lane = lane + lanes[i];
      }
      __syncthreads();
    }
    if (tid < 64) lanes[tid] = lane;
    __syncthreads();
    if (tid < kWarp) {
      const float sum = halve64(lanes[tid], lanes[tid + 32]);
      if (tid == 0) shared_.sum = sum;
    }
    cluster_.sync();
    float s[kBlocks];
    for (int b = 0; b < kBlocks; ++b) s[b] = cluster_.map_shared_rank(&shared_, b)->sum;
    cluster_.sync();
    return math::log(((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
  }

  // The tokens up to `rank`, at most kMostTop, in order, by block 0.
  __device__ void write_top(uint64_t rank, int count, float max, float log_sum, TopToken* out) {
    Shared& first = *cluster_.map_shared_rank(&shared_, 0);
    if (threadIdx.x == 0) shared_.count = 0;
    cluster_.sync();
    each([&](float x, int token) {
      const uint64_t own = rank_of(x, token);
      if (x == kExcluded || own > rank) return;
      first.top[atomicAdd(&first.count, 1)] = own;
    });
    cluster_.sync();
    if (cluster_.block_rank() == 0) {
      const int tid = threadIdx.x, all = shared_.count;
      if (tid < all) {
        const uint64_t own = shared_.top[tid];
        int place = 0;
        for (int i = 0; i < all; ++i) place += shared_.top[i] < own;
        const int token = static_cast<int>(own & ((1 << kIdBits) - 1));
        out[place] = {token, (value(token) - max) - log_sum};
      }
      if (tid >= all && tid < count) out[tid] = {-1, 0.0f};  // fewer have a likelihood
    }
    cluster_.sync();
  }

  __device__ void sync() {
    cluster_.sync();
  }
  __device__ bool is_first() const {
    return cluster_.block_rank() == 0 && threadIdx.x == 0;
  }
  __device__ float raw(int token) const {
    return logits_[token];
  }
  // As it stands in the block that has the token. REQUIRES: a sync of the cluster since it changed.
  __device__ float value(int token) const {
    const int block = token / length_;
    return *cluster_.map_shared_rank(values_ + (token - block * length_), block);
  }
  // How many logits are preferred to this token's; `of_values`: how many values as they stand.
  __device__ uint64_t count_before(int token, bool of_values) {
    const float* all = of_values ? values_ : logits_ + first_;
    const uint64_t own = rank_of(of_values ? value(token) : raw(token), token);
    uint64_t count = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < size_; i += kThreads) count += rank_of(all[i], first_ + i) < own;
    return sum_of_all(count);
  }
  __device__ int first() const {
    return first_;
  }
  __device__ int size() const {
    return size_;
  }
  __device__ float* values() const {
    return values_;
  }

 private:
  // `any_of_bin`: tokens of a bin count alike, so that a whole bin may be the end.
  template <typename Weight>
  __device__ uint64_t narrow(uint64_t target, float max, Weight weight, bool any_of_bin) {
    uint64_t low = rank_of(max, 0),
             high = rank_of(-std::numeric_limits<float>::max(), 0) + (uint64_t{1} << kIdBits) - 1;
    uint64_t before = 0;  // of tokens that are preferred to all in the interval
    for (;;) {
      const int width = 64 - __clzll(static_cast<long long>(high - low));
      const int shift = width > 11 ? width - 11 : 0;
      for (int i = threadIdx.x; i < 2 * kBins; i += kThreads) shared_.bins[i] = 0;
      if (threadIdx.x == 0) shared_.found = false;
      __syncthreads();
      each([&](float x, int token) {
        if (x == kExcluded) return;
        const uint64_t rank = rank_of(x, token);
        if (rank >= low && rank <= high) add(static_cast<int>((rank - low) >> shift), weight(x));
      });
      cluster_.sync();
      find_edge(target, before);
      cluster_.sync();  // bins have been read
      if (!shared_.found) return ~uint64_t{0};
      low += shared_.edge << shift;
      high = low + (uint64_t{1} << shift) - 1;
      before = shared_.before;
      if (shift == 0) return low;
      if (any_of_bin && shared_.is_whole) return high;
    }
  }

  __device__ void add(int bin, uint64_t weight) {
    const uint32_t low = static_cast<uint32_t>(weight);
    uint32_t high = static_cast<uint32_t>(weight >> 32);
    if (low) high += atomicAdd(&shared_.bins[bin], low) + low < low;  // the carry
    if (high) atomicAdd(&shared_.bins[kBins + bin], high);
  }

  // The bin in which the sum of all blocks' bins reaches the target; a thread has 4 of them.
  __device__ void find_edge(uint64_t target, uint64_t before) {
    static_assert(kBins == 4 * kThreads);
    const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
    uint64_t own[4] = {}, sum = 0;
    uint4 low[kBlocks], high[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const uint32_t* bins = cluster_.map_shared_rank(&shared_, b)->bins + tid * 4;
      low[b] = *reinterpret_cast<const uint4*>(bins);
      high[b] = *reinterpret_cast<const uint4*>(bins + kBins);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      own[0] += uint64_t{high[b].x} << 32 | low[b].x;
      own[1] += uint64_t{high[b].y} << 32 | low[b].y;
      own[2] += uint64_t{high[b].z} << 32 | low[b].z;
      own[3] += uint64_t{high[b].w} << 32 | low[b].w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += own[i];
    uint64_t up_to = sum;
    for (int apart = 1; apart < kWarp; apart *= 2) {
      const uint64_t other = __shfl_up_sync(kAllLanes, up_to, apart);
      if (lane >= apart) up_to += other;
    }
    if (lane == kWarp - 1) shared_.warp_sums[warp] = up_to;
    __syncthreads();
    uint64_t here = before + up_to - sum;
    for (int w = 0; w < warp; ++w) here += shared_.warp_sums[w];
    if (here < target && here + sum >= target) {
      bool is_there = false;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (is_there) continue;
        is_there = here + own[i] >= target;
        if (is_there) {
          shared_.edge = static_cast<uint64_t>(tid * 4 + i);
          shared_.before = here;
          shared_.is_whole = here + own[i] == target;
          shared_.found = true;
        }
        here += own[i];
      }
    }
    __syncthreads();
  }

  cg::cluster_group cluster_;
  const float* logits_;
  float* values_;
  Shared& shared_;
  int length_, first_, size_;
};
}  // namespace invar::cuda
