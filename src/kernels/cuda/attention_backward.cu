// The backward of attention (numerics 9) and what it needs of the forward, in order portable on
// CUDA cores, in order hopper on tensor cores. A block has 32 slots and goes through the queries in
// tiles of whole leaves for dk and dv, or the other way round for dq, and computes the weights of
// each tile again. Rows of one table are one sequence from position 0 on.
#include "base/check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/mma.cuh"
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

// Rows of bf16 in shared memory, pairs of neighbouring elements in a word. Their stride keeps those
// that a warp reads at once in different banks.
struct Rows {
  uint32_t* words;
  int stride;
  __device__ uint32_t at(int row, int word) const { return words[row * stride + word]; }
  __device__ const uint32_t* row(int r) const { return words + r * stride; }
  __device__ bf16_t* element(int row, int e) const {
    return reinterpret_cast<bf16_t*>(words + row * stride) + e;
  }
};

// Words of a row of head elements, whole leaves.
__host__ __device__ constexpr int head_words(int head_dim) {
  return static_cast<int>(round_up(head_dim, 32)) / 2;
}
// Words between rows, which threads read word by word, or as pairs of words.
template <Order order>
constexpr int kPad = order == Order::hopper ? 4 : 1;
// Rows of a tile of what a block goes through.
template <Order order>
constexpr int kOther = order == Order::hopper ? 64 : 32;
template <Order order>
constexpr int kLeafStride = kOther<order> / 2 + kPad<order>;  // of rows of as many elements

// One sequence of the batch: its rows are those of one table, which stand together.
struct Sequence {
  int64_t begin, size;
  const int32_t* blocks;

  __device__ Sequence(const AttentionParams& p, int64_t row) : begin(row - p.positions[row]) {
    const int32_t table = p.table_of[row];
    int64_t last = row, beyond = p.rows;  // the last row that is known to be one of them
    while (beyond - last > 1) {
      const int64_t middle = (last + beyond) / 2;
      (p.table_of[middle] == table ? last : beyond) = middle;
    }
    size = beyond - begin;
    blocks = p.tables[table];
  }
  __device__ bool has(int64_t position) const { return position < size; }
};

// The dots of kX rows of x and kY of y: a thread has kDots of them, those of the pairs at(0),
// at(1) ... of rows.
template <Order order, int kX, int kY>
struct TileDots;

template <int kX, int kY>
struct TileDots<Order::portable, kX, kY> {
  static constexpr int kDots = 4;
  __device__ static int2 at(int i) {
    const int thread = static_cast<int>(threadIdx.x);
    return {thread / 16 * 2 + i / 2, thread % 16 * 2 + i % 2};
  }
  __device__ static void compute(const Rows& x, const Rows& y, int head_dim, float (&dots)[4]) {
    const int2 rows = at(0);
#pragma unroll
    for (int i = 0; i < 4; ++i) dots[i] = 0.0f;
    for (int leaf = 0; leaf < head_words(head_dim); leaf += kTile / 2) {
      float even[4] = {}, odd[4] = {};
#pragma unroll
      for (int w = leaf; w < leaf + kTile / 2; ++w) {
        const uint32_t a[2] = {x.at(rows.x, w), x.at(rows.x + 1, w)};
        const uint32_t b[2] = {y.at(rows.y, w), y.at(rows.y + 1, w)};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          even[i] = __fmaf_rn(low(a[i / 2]), low(b[i % 2]), even[i]);
          odd[i] = __fmaf_rn(high(a[i / 2]), high(b[i % 2]), odd[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) dots[i] = dots[i] + (even[i] + odd[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) dots[i] = dots[i] + 0.0f;
  }
};

// 16 outputs from row `first` on.
__device__ StepOutputs load_outputs(const Rows& x, int first, int s) {
  const int lane = threadIdx.x % kWarp;
  const uint32_t* row = x.row(first + lane / 4 * 2);
  const StepRows even = load_row(row, s, lane), odd = load_row(row + x.stride, s, lane);
  return {{even.b[0], odd.b[0], even.b[1], odd.b[1]}};
}
__device__ StepRows load_rows(const Rows& y, int first, int s) {
  const int lane = threadIdx.x % kWarp;
  return load_row(y.row(first + lane / 4), s, lane);
}

// A warp has 16 rows of x and 16 of y.
template <int kX, int kY>
struct TileDots<Order::hopper, kX, kY> {
  static_assert(kX * kY == 32 * 64, "two instructions of each warp");
  static constexpr int kDots = 8, kColumns = kY / 16;

  __device__ static int2 at(int i) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    return {warp / kColumns * 16 + lane / 4 * 2 + i % 4 / 2,
            warp % kColumns * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2};
  }
  __device__ static void compute(const Rows& x, const Rows& y, int head_dim, float (&dots)[8]) {
    const int warp = threadIdx.x / kWarp, column = warp % kColumns * 16;
    float halves[2][4] = {};
    for (int s = 0; s < (head_dim + 15) / 16; ++s) {
      const StepOutputs outputs = load_outputs(x, warp / kColumns * 16, s);
      step(halves[0], outputs, load_rows(y, column, s));
      step(halves[1], outputs, load_rows(y, column + 8, s));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) dots[i] = halves[i / 4][i % 4] + 0.0f;
  }
};

// One query head's tiles of queries and of slots in shared memory.
class Tiles {
 public:
  __device__ Tiles(const AttentionParams& p, const Sequence& sequence, int group)
      : p_(p), sequence_(sequence), group_(group), words_(head_words(p.kv.head_dim)) {}

  __device__ int head_dim() const { return p_.kv.head_dim; }

  // Words of slots from `first` on, zeros where there is none. Head elements of a cache in rows, as
  // of rows of queries, stand side by side; else keys' are pairs, and values' are one by one.
  __device__ void load_slots(int64_t first, int count, bool are_keys, const Rows& to) const {
    const KvLayer& kv = p_.kv;
    const bf16_t* from = are_keys ? kv.keys : kv.values;
    const auto slot_at = [&](int64_t position, int e) {
      const int64_t block = sequence_.blocks[position / kv.block_size];
      const int64_t slot = position % kv.block_size;
      return from + (are_keys ? kv.key_index(block, group_, slot, e)
                              : kv.value_index(block, group_, slot, e));
    };
    if (kv.layout == CacheLayout::rows)
      return load_words(
          to, count, [&](int j) { return is_there(first + j) ? slot_at(first + j, 0) : nullptr; });
    for (int j = threadIdx.x / kWarp; j < count; j += kWarps)
      for (int e = threadIdx.x % kWarp; e < 2 * words_; e += kWarp)
        *to.element(j, e) =
            e < kv.head_dim && is_there(first + j) ? *slot_at(first + j, e) : bf16_t{0};
  }
  // Rows of head elements: `stride` elements from row to row, `offset` to those of the head.
  __device__ void load_rows(int64_t first, int count, const bf16_t* from, int64_t stride,
                            int64_t offset, const Rows& to) const {
    load_words(to, count, [&](int t) {
      return is_there(first + t) ? from + (sequence_.begin + first + t) * stride + offset : nullptr;
    });
  }
  __device__ void load_queries(int64_t first, int count, int h, const Rows& to) const {
    const int64_t padded = round_up(p_.kv.head_dim, 32);
    load_rows(first, count, p_.q, p_.heads * padded, h * padded, to);
  }
  __device__ bool is_valid(int64_t t, int64_t j) const {
    return is_there(t) && j <= t && (p_.window == 0 || j > t - p_.window);
  }

  // The columns of kCount rows of x as rows, for tensor cores, which sum along rows.
  template <int kCount>
  __device__ void transpose(const Rows& x, const Rows& to) const {
    const int row = threadIdx.x % (kCount / 2) * 2;
    for (int word = threadIdx.x / (kCount / 2); word < words_; word += kThreads / (kCount / 2)) {
      const uint32_t a = x.at(row, word), b = x.at(row + 1, word);
      to.words[2 * word * to.stride + row / 2] = __byte_perm(a, b, 0x5410);
      to.words[(2 * word + 1) * to.stride + row / 2] = __byte_perm(a, b, 0x7632);
    }
  }

 private:
  __device__ bool is_there(int64_t position) const { return sequence_.has(position); }

  // All elements of rows that begin at from(row), or zeros where that is null. 16 bytes at a time
  // where the rows are whole such pieces.
  template <typename From>
  __device__ void load_words(const Rows& to, int count, const From& from) const {
    const int head_dim = p_.kv.head_dim, pieces = words_ / 4, whole = head_dim / 8;
    for (int at = threadIdx.x; at < count * pieces; at += kThreads) {
      const int row = at / pieces, piece = at % pieces;
      const bf16_t* x = from(row);
      uint32_t words[4] = {};
      if (x && piece < whole && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
        const uint4 four = *reinterpret_cast<const uint4*>(x + piece * 8);
        words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
      } else if (x) {
        for (int i = 0; i < 8 && piece * 8 + i < head_dim; ++i)
          words[i / 2] |= uint32_t{x[piece * 8 + i]} << (i % 2 * 16);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) to.words[row * to.stride + piece * 4 + i] = words[i];
    }
  }

  const AttentionParams& p_;
  const Sequence& sequence_;
  const int group_, words_;
};

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

// ---- Sums over rows of x, weighted, for 32 rows of weights. A thread has kValues of them.

template <Order order, int kPairs>  // kPairs * 64 head elements at most
struct Sums;

// A thread has 4 rows of weights by kPairs pairs of head elements.
template <int kPairs>
struct Sums<Order::portable, kPairs> {
  static constexpr int kValues = 8 * kPairs;
  float of[kValues] = {};

  __device__ static int row(int i) {
    return static_cast<int>(threadIdx.x) / kWarp * 4 + i / (2 * kPairs);
  }
  __device__ static int element(int i) {
    const int lane = threadIdx.x % kWarp, column = i % (2 * kPairs);
    return 2 * (lane + column / 2 * kWarp) + column % 2;
  }

  // of[i] = of[i] + the leaf of (weights[row(i)][s], x[s][element(i)]) over s.
  __device__ void add(const Rows& weights, const Rows& x, const Rows&, int words) {
    const int first = row(0), lane = threadIdx.x % kWarp;
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
          const uint32_t w = weights.at(first + r, s);
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
          float& sum = of[r * 2 * kPairs + 2 * pair + i];
          sum = sum + (even[r][i] + odd[r][i]);
        }
    }
  }
};

// A warp has all rows of weights by kPairs times 8 head elements: two instructions each.
template <int kPairs>
struct Sums<Order::hopper, kPairs> {
  static constexpr int kValues = 8 * kPairs;
  float of[kValues] = {};

  __device__ static int row(int i) {
    return i / 4 % 2 * 16 + static_cast<int>(threadIdx.x) % kWarp / 4 * 2 + i % 4 / 2;
  }
  __device__ static int element(int i) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    return (i / 8 * kWarps + warp) * 8 + lane % 4 * 2 + i % 2;
  }

  // of[i] goes on with steps of (weights[row(i)][s], columns[element(i)][s]).
  __device__ void add(const Rows& weights, const Rows&, const Rows& columns, int words) {
    const int warp = threadIdx.x / kWarp;
#pragma unroll
    for (int s = 0; s < kOther<Order::hopper> / 16; ++s) {
      const StepOutputs outputs[2] = {load_outputs(weights, 0, s), load_outputs(weights, 16, s)};
#pragma unroll
      for (int c = 0; c < kPairs; ++c) {
        const int first = (c * kWarps + warp) * 8;
        if (first >= 2 * words) continue;
        const StepRows rows = load_rows(columns, first, s);
        step(reinterpret_cast<float(&)[4]>(of[8 * c]), outputs[0], rows);
        step(reinterpret_cast<float(&)[4]>(of[8 * c + 4]), outputs[1], rows);
      }
    }
  }
};

// The + 0 behind the chain of a head.
template <typename Sums>
__device__ void end_head(Sums& sums) {
#pragma unroll
  for (int i = 0; i < Sums::kValues; ++i) sums.of[i] = sums.of[i] + 0.0f;
}

// To the rows of d_qkv from position `first` on.
template <typename Sums>
__device__ void write(const AttentionBackwardParams& p, const Sequence& sequence, int64_t first,
                      int64_t head, const Sums& sums) {
  const int head_dim = p.forward.kv.head_dim;
#pragma unroll
  for (int i = 0; i < Sums::kValues; ++i) {
    const int64_t position = first + Sums::row(i);
    const int e = Sums::element(i);
    if (e < head_dim && sequence.has(position))
      p.d_qkv[(sequence.begin + position) * p.d_qkv_stride + head * head_dim + e] = sums.of[i];
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
