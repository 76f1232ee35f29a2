// The backward of attention (numerics 9) and what it needs of the forward, in order portable on
// CUDA cores, in order hopper on tensor cores. A block has 32 slots and goes through the queries in
// tiles of whole leaves for dk and dv, or the other way round for dq, and computes the weights of
// each tile again. Rows of one table are one sequence from position 0 on.
#include "base/check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/attention_backward_weighted.cuh"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda {

namespace {

// ---- The weights p and ds of a tile

struct TileMemory {
  Rows q, d_out, keys, values;
  Rows p, ds;          // [32][32] each, see below
  Rows first, second;  // order hopper: columns of what is summed, as rows
  float* mean;         // D of the queries
  float* max;          // M
  float* by_sum;       // 1 / L
};

// A block has slots and goes through queries, or the other way round.
template <Order order, bool kSumsQueries>
struct TileSizes {
  static constexpr int kQueries = kSumsQueries ? kOther<order> : kTile;
  static constexpr int kSlots = kSumsQueries ? kTile : kOther<order>;
  using Dots = TileDots<order, kQueries, kSlots>;

  __device__ static TileMemory place(uint32_t* shared, int words) {
    TileMemory m;
    const auto take = [&](Rows& rows, int count, int stride) {
      rows = {shared, stride};
      shared += count * stride;
    };
    for (Rows* rows : {&m.q, &m.d_out}) take(*rows, kQueries, words + kPad<order>);
    for (Rows* rows : {&m.keys, &m.values}) take(*rows, kSlots, words + kPad<order>);
    for (Rows* rows : {&m.p, &m.ds}) take(*rows, kTile, kLeafStride<order>);
    if constexpr (order == Order::hopper) {
      take(m.first, 2 * words, kLeafStride<order>);
      if constexpr (kSumsQueries) take(m.second, 2 * words, kLeafStride<order>);
    }
    m.mean = reinterpret_cast<float*>(shared);
    m.max = m.mean + kQueries, m.by_sum = m.max + kQueries;
    return m;
  }
  static int bytes(int head_dim) {
    const int words = head_words(head_dim);
    const int columns = order == Order::hopper ? (kSumsQueries ? 4 : 2) * words : 0;
    return static_cast<int>(sizeof(uint32_t)) *
           (2 * (kQueries + kSlots) * (words + kPad<order>)+(2 * kTile + columns) *
                kLeafStride<order> +
            3 * kQueries);
  }
};

// With the scales of scores and of their gradients.
struct Backward {
  AttentionBackwardParams p;
  float factor, scale;
};

// The sums M and L of the queries' forward, and D: sum64 of d_out * out.
__device__ void load_sums(const AttentionBackwardParams& p, const Sequence& sequence, int64_t first,
                          int count, int h, const TileMemory& m) {
  const AttentionParams& f = p.forward;
  const int lane = threadIdx.x % kWarp;
  for (int i = threadIdx.x / kWarp; i < count; i += kWarps) {
    const int64_t row = sequence.begin + first + i;
    const bool is_there = sequence.has(first + i);
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
template <Order order, bool kSumsQueries>
__device__ void weigh(const Backward& of, const Tiles& tiles, int64_t t0, int64_t j0,
                      const TileMemory& m) {
  using Dots = typename TileSizes<order, kSumsQueries>::Dots;
  float scores[Dots::kDots], dp[Dots::kDots];
  Dots::compute(m.q, m.keys, tiles.head_dim(), scores);
  Dots::compute(m.d_out, m.values, tiles.head_dim(), dp);
#pragma unroll
  for (int i = 0; i < Dots::kDots; ++i) {
    const auto [a, b] = Dots::at(i);
    float weight = 0.0f, ds = 0.0f;
    if (tiles.is_valid(t0 + a, j0 + b)) {
      weight = math::exp2(__fmaf_rn(scores[i], of.factor, -m.max[a])) * m.by_sum[a];
      ds = (weight * (dp[i] - m.mean[a])) * of.scale;
    }
    const int row = kSumsQueries ? b : a, column = kSumsQueries ? a : b;
    *m.p.element(row, column) = f32_to_bf16(weight);
    *m.ds.element(row, column) = f32_to_bf16(ds);
  }
}

// A block has a tile of slots of a key/value head, if a row begins one: blockIdx.x is the row.
template <Order order, int kPairs>
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
  const int words = head_words(f.kv.head_dim);
  constexpr int kStep = kOther<order>;
  const TileMemory m = TileSizes<order, true>::place(shared, words);
  tiles.load_slots(j0, kTile, true, m.keys);
  tiles.load_slots(j0, kTile, false, m.values);
  Sums<order, kPairs> d_keys, d_values;
  for (int h = group * heads; h < (group + 1) * heads; ++h) {
    for (int64_t t0 = j0; sequence.has(t0); t0 += kStep) {
      if (f.window > 0 && t0 >= j0 + kTile + f.window) break;
      __syncthreads();
      tiles.load_queries(t0, kStep, h, m.q);
      tiles.load_rows(t0, kStep, static_cast<const bf16_t*>(p.d_out.data), p.d_out.stride,
                      int64_t{h} * f.kv.head_dim, m.d_out);
      load_sums(p, sequence, t0, kStep, h, m);
      __syncthreads();
      weigh<order, true>(of, tiles, t0, j0, m);
      if constexpr (order == Order::hopper)
        tiles.transpose<kStep>(m.q, m.first), tiles.transpose<kStep>(m.d_out, m.second);
      __syncthreads();
      d_keys.add(m.ds, m.q, m.first, words);
      d_values.add(m.p, m.d_out, m.second, words);
    }
    end_head(d_keys);
    end_head(d_values);
  }
  write(p, sequence, j0, f.heads + group, d_keys);
  write(p, sequence, j0, f.heads + f.kv.kv_heads + group, d_values);
}

// A block has a tile of queries of a head.
template <Order order, int kPairs>
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
  const int words = head_words(f.kv.head_dim);
  constexpr int kStep = kOther<order>;
  const TileMemory m = TileSizes<order, false>::place(shared, words);
  tiles.load_queries(t0, kTile, h, m.q);
  tiles.load_rows(t0, kTile, static_cast<const bf16_t*>(p.d_out.data), p.d_out.stride,
                  int64_t{h} * f.kv.head_dim, m.d_out);
  load_sums(p, sequence, t0, kTile, h, m);
  Sums<order, kPairs> d_queries;
  for (int64_t j0 = 0; j0 < t0 + kTile; j0 += kStep) {
    if (f.window > 0 && j0 + kStep + f.window <= t0) continue;
    __syncthreads();
    tiles.load_slots(j0, kStep, true, m.keys);
    tiles.load_slots(j0, kStep, false, m.values);
    __syncthreads();
    weigh<order, false>(of, tiles, t0, j0, m);
    if constexpr (order == Order::hopper) tiles.transpose<kStep>(m.keys, m.first);
    __syncthreads();
    d_queries.add(m.ds, m.keys, m.first, words);
  }
  end_head(d_queries);
  write(p, sequence, t0, h, d_queries);
}

template <Order order, int kPairs>
void launch_backward(const AttentionBackwardParams& p, const Execution& on) {
  const AttentionParams& f = p.forward;
  const Backward of{p, score_scale(f).factor, gradient_scale(f)};
  const auto start = [&](auto* kernel, int heads, int bytes) {
    const cudaStream_t stream = stream_of(on);
    gpu_of(on).allow_shared(reinterpret_cast<const void*>(kernel), bytes);
    kernel<<<dim3(static_cast<unsigned>(f.rows), static_cast<unsigned>(heads)), kThreads,
             static_cast<size_t>(bytes), stream>>>(of);
    cuda_launched("attention's backward");
  };
  start(key_gradients_kernel<order, kPairs>, f.kv.kv_heads,
        TileSizes<order, true>::bytes(f.kv.head_dim));
  start(query_gradients_kernel<order, kPairs>, f.heads,
        TileSizes<order, false>::bytes(f.kv.head_dim));
}

// ---- M and L of the forward

// A block has a tile of queries of a head.
template <Order order>
__global__ __launch_bounds__(kThreads) void attention_sums_kernel(
    const __grid_constant__ PartialAttentionParams partial, ScoreScale scale, SumsOf rows) {
  extern __shared__ uint32_t shared[];
  __shared__ float scores[kTile][kSplitSlots + 1];
  const AttentionParams& p = partial.of;
  const int64_t t0 = p.positions[blockIdx.x];
  if (t0 % kTile != 0) return;
  if (rows == SumsOf::few_rows && has_many_rows(p, blockIdx.x)) return;
  const int h = static_cast<int>(blockIdx.y), lane = threadIdx.x % kWarp;
  const Sequence sequence(p, blockIdx.x);
  const Tiles tiles(p, sequence, h / (p.heads / p.kv.kv_heads));
  using Sizes = TileSizes<order, false>;
  const TileMemory m = Sizes::place(shared, head_words(p.kv.head_dim));
  tiles.load_queries(t0, kTile, h, m.q);
  float max[4] = {}, sum[4] = {};  // of this warp's queries
  bool is_set[4] = {};
  for (int64_t base = 0; base < t0 + kTile; base += kSplitSlots) {
    if (p.window > 0 && base + kSplitSlots + p.window <= t0) continue;
    for (int64_t j0 = base; j0 < base + kSplitSlots && j0 < t0 + kTile; j0 += Sizes::kSlots) {
      __syncthreads();
      tiles.load_slots(j0, Sizes::kSlots, true, m.keys);
      __syncthreads();
      float dots[Sizes::Dots::kDots];
      Sizes::Dots::compute(m.q, m.keys, tiles.head_dim(), dots);
      for (int i = 0; i < Sizes::Dots::kDots; ++i) {
        const auto [t, j] = Sizes::Dots::at(i);
        scores[t][j0 - base + j] =
            scale.inner > 0 ? math::half_tanh(dots[i] * scale.inner) : dots[i];
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
    if (lane != 0 || !sequence.has(t)) continue;
    partial.max[(sequence.begin + t) * p.heads + h] = max[i];
    partial.sum[(sequence.begin + t) * p.heads + h] = sum[i];
  }
}

}  // namespace

template <Order order>
void attention_backward(const AttentionBackwardParams& p, const Execution& on) {
  const AttentionParams& f = p.forward;
  if (f.rows == 0) return;
  CHECK(f.kv.head_dim <= kMostHeadDim && !f.kv.is_f32(), "heads of attention's backward");
  if (order == Order::hopper && backward_tiles_can(p)) return attention_backward_tiles(p, on);
  switch ((head_words(f.kv.head_dim) + kWarp - 1) / kWarp) {
    case 1:
      return launch_backward<order, 1>(p, on);
    case 2:
      return launch_backward<order, 2>(p, on);
    case 3:
      return launch_backward<order, 3>(p, on);
    default:
      return launch_backward<order, 4>(p, on);
  }
}
template void attention_backward<Order::portable>(const AttentionBackwardParams&, const Execution&);
template void attention_backward<Order::hopper>(const AttentionBackwardParams&, const Execution&);

template <Order order>
void attention_sums(const PartialAttentionParams& p, SumsOf rows, const Execution& on) {
  const AttentionParams& f = p.of;
  if (f.rows == 0 || !p.max) return;
  CHECK(f.kv.head_dim <= kMostHeadDim && !f.kv.is_f32() && !f.sinks && !p.begin,
        "what attention keeps for its backward");
  const int bytes = TileSizes<order, false>::bytes(f.kv.head_dim);
  const cudaStream_t stream = stream_of(on);
  auto* kernel = attention_sums_kernel<order>;
  gpu_of(on).allow_shared(reinterpret_cast<const void*>(kernel), bytes);
  kernel<<<dim3(static_cast<unsigned>(f.rows), static_cast<unsigned>(f.heads)), kThreads,
           static_cast<size_t>(bytes), stream>>>(p, score_scale(f), rows);
  cuda_launched("sums of attention");
}
template void attention_sums<Order::portable>(const PartialAttentionParams&, SumsOf,
                                              const Execution&);
template void attention_sums<Order::hopper>(const PartialAttentionParams&, SumsOf,
                                            const Execution&);

}  // namespace invar::cuda
