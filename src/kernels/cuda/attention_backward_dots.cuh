// Tiles of queries and slots that a block of attention_backward.cu holds, and dots of their rows.
#pragma once

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

}  // namespace

}  // namespace invar::cuda
