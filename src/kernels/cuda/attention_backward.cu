// The backward of attention (numerics 9) in order portable on CUDA cores, and what it needs of the
// forward. Tiles are 32 queries by 32 slots, the leaves of all its sums: a block has the slots of
// one tile and goes through the queries' tiles for dk and dv, or the other way round for dq, and
// computes the weights of each tile again. Rows of one table are one sequence from position 0 on.
#include "base/check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda {

namespace {

constexpr int kTile = 32, kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMostHeadDim = 256;

__device__ float low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ float high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000);
}

// 32 rows of bf16 in shared memory, pairs of neighbouring elements in a word; an odd stride keeps
// rows in different banks.
struct Rows {
  uint32_t* words;
  int stride;
  __device__ uint32_t at(int row, int word) const { return words[row * stride + word]; }
  __device__ bf16_t* element(int row, int e) const {
    return reinterpret_cast<bf16_t*>(words + row * stride) + e;
  }
};

// Words of a row of head elements, whole leaves.
__host__ __device__ constexpr int head_words(int head_dim) {
  return static_cast<int>(round_up(head_dim, 32)) / 2;
}
constexpr int kWeightStride = kTile / 2 + 1;  // words of a row of weights

// One sequence of the batch.
struct Sequence {
  int64_t begin;  // row of its position 0
  int64_t rows;   // of the batch
  int32_t table;
  const int32_t* blocks;

  __device__ Sequence(const AttentionParams& p, int64_t row)
      : begin(row - p.positions[row]),
        rows(p.rows),
        table(p.table_of[row]),
        blocks(p.tables[table]) {}
  __device__ bool has(const AttentionParams& p, int64_t position) const {
    const int64_t row = begin + position;
    return row < rows && p.table_of[row] == table;
  }
};

// dot(x, y) over the words of two rows, order portable, without the final + 0.
__device__ void dots(const Rows& x, const Rows& y, int words, int x0, int y0, float (&sum)[2][2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i / 2][i % 2] = 0.0f;
  for (int leaf = 0; leaf < words; leaf += kTile / 2) {
    float even[2][2] = {}, odd[2][2] = {};
#pragma unroll
    for (int w = leaf; w < leaf + kTile / 2; ++w) {
      const uint32_t a[2] = {x.at(x0, w), x.at(x0 + 1, w)}, b[2] = {y.at(y0, w), y.at(y0 + 1, w)};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        even[i / 2][i % 2] = __fmaf_rn(low(a[i / 2]), low(b[i % 2]), even[i / 2][i % 2]);
        odd[i / 2][i % 2] = __fmaf_rn(high(a[i / 2]), high(b[i % 2]), odd[i / 2][i % 2]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum[i / 2][i % 2] = sum[i / 2][i % 2] + (even[i / 2][i % 2] + odd[i / 2][i % 2]);
  }
}

// Of one query head: tiles of queries and of slots in shared memory.
class Tiles {
 public:
  __device__ Tiles(const AttentionParams& p, const Sequence& sequence, int group)
      : p_(p), sequence_(sequence), group_(group), words_(head_words(p.kv.head_dim)) {}

  __device__ int words() const { return words_; }

  __device__ void load_slots(int64_t first, bool are_keys, const Rows& to) const {
    const KvLayer& kv = p_.kv;
    for (int at = threadIdx.x; at < kTile * words_ * 2; at += kThreads) {
      const int j = at / (words_ * 2), e = at % (words_ * 2);
      const int64_t position = first + j;
      bf16_t x{0};
      if (e < kv.head_dim && sequence_.has(p_, position)) {
        const int64_t block = sequence_.blocks[position / kv.block_size];
        const int64_t slot = position % kv.block_size;
        x = are_keys ? kv.keys[kv.key_index(block, group_, slot, e)]
                     : kv.values[kv.value_index(block, group_, slot, e)];
      }
      *to.element(j, e) = x;
    }
  }
  // Rows of head elements: `stride` elements from row to row, `offset` to those of the head.
  __device__ void load_rows(int64_t first, const bf16_t* from, int64_t stride, int64_t offset,
                            const Rows& to) const {
    for (int at = threadIdx.x; at < kTile * words_ * 2; at += kThreads) {
      const int t = at / (words_ * 2), e = at % (words_ * 2);
      const bool is_there = e < p_.kv.head_dim && sequence_.has(p_, first + t);
      *to.element(t, e) =
          is_there ? from[(sequence_.begin + first + t) * stride + offset + e] : bf16_t{0};
    }
  }
  __device__ void load_queries(int64_t first, int h, const Rows& to) const {
    const int64_t padded = round_up(p_.kv.head_dim, 32);
    load_rows(first, p_.q, p_.heads * padded, h * padded, to);
  }
  __device__ bool is_valid(int64_t t, int64_t j) const {
    return sequence_.has(p_, t) && j <= t && (p_.window == 0 || j > t - p_.window);
  }

 private:
  const AttentionParams& p_;
  const Sequence& sequence_;
  const int group_, words_;
};

// ---- The weights p and ds of a tile

struct TileMemory {
  Rows q, d_out, keys, values;
  Rows p, ds;     // [32][32] each, see below
  float* mean;    // D of the queries
  float* max;     // M
  float* by_sum;  // 1 / L
};

__device__ TileMemory memory_of(uint32_t* shared, int words) {
  TileMemory m;
  for (Rows* rows : {&m.q, &m.d_out, &m.keys, &m.values}) {
    *rows = {shared, words + 1};
    shared += kTile * (words + 1);
  }
  for (Rows* rows : {&m.p, &m.ds}) {
    *rows = {shared, kWeightStride};
    shared += kTile * kWeightStride;
  }
  m.mean = reinterpret_cast<float*>(shared);
  m.max = m.mean + kTile, m.by_sum = m.max + kTile;
  return m;
}
int shared_bytes(int head_dim) {
  return (4 * kTile * (head_words(head_dim) + 1) + 2 * kTile * kWeightStride + 3 * kTile) * 4;
}

// With the scales of scores and of their gradients.
struct Backward {
  AttentionBackwardParams p;
  float factor, scale;
};

// What queries have of the forward, and D: sum64 of d_out * out.
__device__ void load_sums(const AttentionBackwardParams& p, const Sequence& sequence, int64_t first,
                          int h, const TileMemory& m) {
  const AttentionParams& f = p.forward;
  const int lane = threadIdx.x % kWarp;
  for (int i = threadIdx.x / kWarp; i < kTile; i += kWarps) {
    const int64_t row = sequence.begin + first + i;
    const bool is_there = sequence.has(f, first + i);
    float lanes[2] = {};
    if (is_there) {
      const bf16_t* x = static_cast<const bf16_t*>(p.d_out.data) + row * p.d_out.stride;
      const bf16_t* y = static_cast<const bf16_t*>(f.out.data) + row * f.out.stride;
      const int64_t head = int64_t{h} * f.kv.head_dim;
      for (int e = lane, half = 0; e < f.kv.head_dim; e += kWarp, half ^= 1)
        lanes[half] = __fmaf_rn(bf16_to_f32(x[head + e]), bf16_to_f32(y[head + e]), lanes[half]);
    }
    const float mean = halve64(lanes[0], lanes[1]);
    if (lane != 0) continue;
    m.mean[i] = mean;
    m.max[i] = is_there ? p.max[row * f.heads + h] : 0.0f;
    m.by_sum[i] = is_there ? 1.0f / p.sum[row * f.heads + h] : 0.0f;
  }
}

// Weights of queries t0 .. and slots j0 .., rounded. Rows of p and ds are slots with queries side
// by side where the queries are summed over, else queries with slots side by side.
template <bool kSumsQueries>
__device__ void weigh(const Backward& of, const Tiles& tiles, int64_t t0, int64_t j0,
                      const TileMemory& m) {
  const int t = static_cast<int>(threadIdx.x) / 16 * 2, j = static_cast<int>(threadIdx.x) % 16 * 2;
  float scores[2][2], dp[2][2];
  dots(m.q, m.keys, tiles.words(), t, j, scores);
  dots(m.d_out, m.values, tiles.words(), t, j, dp);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int a = t + i / 2, b = j + i % 2;
    float weight = 0.0f, ds = 0.0f;
    if (tiles.is_valid(t0 + a, j0 + b)) {
      const float score = scores[i / 2][i % 2] + 0.0f;
      weight = math::exp2(__fmaf_rn(score, of.factor, -m.max[a])) * m.by_sum[a];
      ds = (weight * ((dp[i / 2][i % 2] + 0.0f) - m.mean[a])) * of.scale;
    }
    const int row = kSumsQueries ? b : a, column = kSumsQueries ? a : b;
    *m.p.element(row, column) = f32_to_bf16(weight);
    *m.ds.element(row, column) = f32_to_bf16(ds);
  }
}

// ---- Sums over a leaf of 32: a thread has 4 rows of weights by kPairs pairs of head elements.

template <int kPairs>
struct Sums {
  float of[4][2 * kPairs] = {};

  // of[r][.] = of[r][.] + the leaf of (weights[row][s], x[s][.]) over s.
  __device__ void add_leaf(const Rows& weights, const Rows& x, int words) {
    const int row = static_cast<int>(threadIdx.x) / kWarp * 4, lane = threadIdx.x % kWarp;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int word = lane + pair * kWarp;
      if (word >= words) continue;
      float even[4][2] = {}, odd[4][2] = {};
#pragma unroll
      for (int s = 0; s < kTile / 2; ++s) {
        const uint32_t a = x.at(2 * s, word), b = x.at(2 * s + 1, word);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const uint32_t w = weights.at(row + r, s);
          even[r][0] = __fmaf_rn(low(w), low(a), even[r][0]);
          even[r][1] = __fmaf_rn(low(w), high(a), even[r][1]);
          odd[r][0] = __fmaf_rn(high(w), low(b), odd[r][0]);
          odd[r][1] = __fmaf_rn(high(w), high(b), odd[r][1]);
        }
      }
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& sum = of[r][2 * pair + i];
          sum = sum + (even[r][i] + odd[r][i]);
        }
    }
  }

  // Rows of `out` from position `first` on.
  __device__ void write(const AttentionBackwardParams& p, const Sequence& sequence, int64_t first,
                        int64_t head) const {
    const int row = static_cast<int>(threadIdx.x) / kWarp * 4, lane = threadIdx.x % kWarp;
    const int e_count = p.forward.kv.head_dim;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (!sequence.has(p.forward, first + row + r)) continue;
      float* out = p.d_qkv + (sequence.begin + first + row + r) * p.d_qkv_stride + head * e_count;
#pragma unroll
      for (int i = 0; i < 2 * kPairs; ++i) {
        const int e = 2 * (lane + i / 2 * kWarp) + i % 2;
        if (e < e_count) out[e] = of[r][i] + 0.0f;
      }
    }
  }
};

// A block has a tile of slots of a key/value head, if a row begins one: blockIdx.x is the row.
template <int kPairs>
__global__ __launch_bounds__(kThreads) void key_gradients_kernel(
    const __grid_constant__ Backward of) {
  extern __shared__ uint32_t shared[];
  const AttentionBackwardParams& p = of.p;
  const AttentionParams& f = p.forward;
  const int64_t j0 = f.positions[blockIdx.x];
  if (j0 % kTile != 0) return;
  const int group = static_cast<int>(blockIdx.y), heads = f.heads / f.kv.kv_heads;
  const Sequence sequence(f, blockIdx.x);
  const Tiles tiles(f, sequence, group);
  const TileMemory m = memory_of(shared, tiles.words());
  tiles.load_slots(j0, true, m.keys);
  tiles.load_slots(j0, false, m.values);
  Sums<kPairs> d_keys, d_values;
  for (int h = group * heads; h < (group + 1) * heads; ++h)
    for (int64_t t0 = j0; sequence.has(f, t0); t0 += kTile) {
      if (f.window > 0 && t0 >= j0 + kTile + f.window) break;
      __syncthreads();
      tiles.load_queries(t0, h, m.q);
      tiles.load_rows(t0, static_cast<const bf16_t*>(p.d_out.data), p.d_out.stride,
                      int64_t{h} * f.kv.head_dim, m.d_out);
      load_sums(p, sequence, t0, h, m);
      __syncthreads();
      weigh<true>(of, tiles, t0, j0, m);
      __syncthreads();
      d_keys.add_leaf(m.ds, m.q, tiles.words());
      d_values.add_leaf(m.p, m.d_out, tiles.words());
    }
  d_keys.write(p, sequence, j0, f.heads + group);
  d_values.write(p, sequence, j0, f.heads + f.kv.kv_heads + group);
}

// A block has a tile of queries of a head.
template <int kPairs>
__global__ __launch_bounds__(kThreads) void query_gradients_kernel(
    const __grid_constant__ Backward of) {
  extern __shared__ uint32_t shared[];
  const AttentionBackwardParams& p = of.p;
  const AttentionParams& f = p.forward;
  const int64_t t0 = f.positions[blockIdx.x];
  if (t0 % kTile != 0) return;
  const int h = static_cast<int>(blockIdx.y), group = h / (f.heads / f.kv.kv_heads);
  const Sequence sequence(f, blockIdx.x);
  const Tiles tiles(f, sequence, group);
  const TileMemory m = memory_of(shared, tiles.words());
  tiles.load_queries(t0, h, m.q);
  tiles.load_rows(t0, static_cast<const bf16_t*>(p.d_out.data), p.d_out.stride,
                  int64_t{h} * f.kv.head_dim, m.d_out);
  load_sums(p, sequence, t0, h, m);
  Sums<kPairs> d_queries;
  for (int64_t j0 = 0; j0 <= t0; j0 += kTile) {
    if (f.window > 0 && j0 + kTile + f.window <= t0) continue;
    __syncthreads();
    tiles.load_slots(j0, true, m.keys);
    tiles.load_slots(j0, false, m.values);
    __syncthreads();
    weigh<false>(of, tiles, t0, j0, m);
    __syncthreads();
    d_queries.add_leaf(m.ds, m.keys, tiles.words());
  }
  d_queries.write(p, sequence, t0, h);
}

template <int kPairs>
void launch_backward(const AttentionBackwardParams& p, const Execution& on) {
  const AttentionParams& f = p.forward;
  const Backward of{p, score_scale(f).factor, gradient_scale(f)};
  const int bytes = shared_bytes(f.kv.head_dim);
  const auto start = [&](auto* kernel, int heads) {
    const cudaStream_t stream = stream_of(on);
    gpu_of(on).allow_shared(reinterpret_cast<const void*>(kernel), bytes);
    kernel<<<dim3(static_cast<unsigned>(f.rows), static_cast<unsigned>(heads)), kThreads,
             static_cast<size_t>(bytes), stream>>>(of);
    cuda_launched("attention's backward");
  };
  start(key_gradients_kernel<kPairs>, f.kv.kv_heads);
  start(query_gradients_kernel<kPairs>, f.heads);
}

// ---- M and L of the forward

// A block has a tile of queries of a head.
__global__ __launch_bounds__(kThreads) void attention_sums_kernel(
    const __grid_constant__ PartialAttentionParams partial, ScoreScale scale) {
  extern __shared__ uint32_t shared[];
  __shared__ float scores[kTile][kSplitSlots + 1];
  const AttentionParams& p = partial.of;
  const int64_t t0 = p.positions[blockIdx.x];
  if (t0 % kTile != 0) return;
  const int h = static_cast<int>(blockIdx.y), lane = threadIdx.x % kWarp;
  const Sequence sequence(p, blockIdx.x);
  const Tiles tiles(p, sequence, h / (p.heads / p.kv.kv_heads));
  const TileMemory m = memory_of(shared, tiles.words());
  tiles.load_queries(t0, h, m.q);
  float max[4] = {}, sum[4] = {};  // of this warp's queries
  bool is_set[4] = {};
  for (int64_t base = 0; base < t0 + kTile; base += kSplitSlots) {
    if (p.window > 0 && base + kSplitSlots + p.window <= t0) continue;
    for (int64_t j0 = base; j0 < base + kSplitSlots && j0 < t0 + kTile; j0 += kTile) {
      __syncthreads();
      tiles.load_slots(j0, true, m.keys);
      __syncthreads();
      const int t = static_cast<int>(threadIdx.x) / 16 * 2;
      const int j = static_cast<int>(threadIdx.x) % 16 * 2;
      float found[2][2];
      dots(m.q, m.keys, tiles.words(), t, j, found);
      for (int i = 0; i < 4; ++i) {
        float d = found[i / 2][i % 2] + 0.0f;
        if (scale.inner > 0) d = math::half_tanh(d * scale.inner);
        scores[t + i / 2][j0 - base + j + i % 2] = d;
      }
    }
    __syncthreads();
    for (int i = 0; i < 4; ++i) {
      const int query = static_cast<int>(threadIdx.x) / kWarp * 4 + i;
      const auto is_valid = [&](int s) { return tiles.is_valid(t0 + query, base + s); };
      float most = -INFINITY;
      for (int s = lane; s < kSplitSlots; s += kWarp)
        if (is_valid(s) && scores[query][s] > most) most = scores[query][s];
      most = warp_max(most);
      if (most == -INFINITY) continue;
      const float split_max = most * scale.factor;
      const auto weight = [&](int s) {
        return is_valid(s) ? math::exp2(__fmaf_rn(scores[query][s], scale.factor, -split_max))
                           : 0.0f;
      };
      const float split_sum = halve64((0.0f + weight(lane)) + weight(lane + 64),
                                      (0.0f + weight(lane + 32)) + weight(lane + 96));
      if (!is_set[i]) {
        max[i] = split_max, sum[i] = split_sum, is_set[i] = true;
        continue;
      }
      const float next = max[i] < split_max ? split_max : max[i];
      const float a = math::exp2(max[i] - next), b = math::exp2(split_max - next);
      sum[i] = __fmaf_rn(sum[i], a, split_sum * b);
      max[i] = next;
    }
  }
  for (int i = 0; i < 4; ++i) {
    const int64_t t = t0 + static_cast<int>(threadIdx.x) / kWarp * 4 + i;
    if (lane != 0 || !sequence.has(p, t)) continue;
    partial.max[(sequence.begin + t) * p.heads + h] = max[i];
    partial.sum[(sequence.begin + t) * p.heads + h] = sum[i];
  }
}

}  // namespace

void attention_backward(const AttentionBackwardParams& p, const Execution& on) {
  const AttentionParams& f = p.forward;
  if (f.rows == 0) return;
  CHECK(f.kv.head_dim <= kMostHeadDim && !f.kv.is_f32(), "heads of attention's backward");
  switch ((head_words(f.kv.head_dim) + kWarp - 1) / kWarp) {
    case 1:
      return launch_backward<1>(p, on);
    case 2:
      return launch_backward<2>(p, on);
    case 3:
      return launch_backward<3>(p, on);
    default:
      return launch_backward<4>(p, on);
  }
}

void attention_sums(const PartialAttentionParams& p, const Execution& on) {
  const AttentionParams& f = p.of;
  if (f.rows == 0 || !p.max) return;
  CHECK(f.kv.head_dim <= kMostHeadDim && !f.kv.is_f32() && !f.sinks && !p.begin,
        "what attention keeps for its backward");
  const int bytes = shared_bytes(f.kv.head_dim);
  const cudaStream_t stream = stream_of(on);
  gpu_of(on).allow_shared(reinterpret_cast<const void*>(attention_sums_kernel), bytes);
  attention_sums_kernel<<<dim3(static_cast<unsigned>(f.rows), static_cast<unsigned>(f.heads)),
                          kThreads, static_cast<size_t>(bytes), stream>>>(p, score_scale(f));
  cuda_launched("sums of attention");
}

}  // namespace invar::cuda
