// Queries, keys and values from the product of their weights (numerics 4): which heads, which slots
// of the cache. The work inside a head comes from an instruction set's RowFunctions.
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/words.h"

namespace invar::cpu {

namespace {

constexpr int kMaxHead = 576;

void write_key(bf16_t* block, int slot, const bf16_t* key, int head_dim) {
  bf16_t* to = block + packed_index_bf16(slot, 0, head_dim);
  for (int e = 0; e < head_dim; e += 2) std::memcpy(to + 16 * e, key + e, 4);
}

void write_value(bf16_t* leaf, int slot, const bf16_t* value, int head_dim) {
  bf16_t* to = leaf + packed_index_bf16(0, slot % 32, 32);
  for (int e = 0; e < head_dim; ++e) to[e / 16 * 512 + e % 16 * 2] = value[e];
}

// Keys of eight slots that begin at a multiple of eight, from rows of kMaxHead elements.
void write_keys(bf16_t* block, int slot, const bf16_t* keys, int head_dim) {
  uint32_t* to = reinterpret_cast<uint32_t*>(block + packed_index_bf16(slot, 0, head_dim));
  for (int e = 0; e < head_dim; e += 16)
    transpose8(keys + e, kMaxHead * sizeof(bf16_t), to + e / 2 * 16, 16);
}

// The values of an even slot and the one after it fill whole cache lines.
void write_value_pair(bf16_t* leaf, int slot, const bf16_t* even, const bf16_t* odd, int head_dim) {
  bf16_t* to = leaf + packed_index_bf16(0, slot % 32, 32);
  for (int e = 0; e < head_dim; e += 16, to += 512) {
    if (e + 16 > head_dim) {
      for (int i = 0; i < head_dim - e; ++i) to[2 * i] = even[e + i], to[2 * i + 1] = odd[e + i];
      break;
    }
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + e));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + e));
    const __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
    __m256i* line = reinterpret_cast<__m256i*>(to);
    _mm256_storeu_si256(line, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256(line + 1, _mm256_permute2x128_si256(low, high, 0x31));
  }
}

// Products of one head or more, of the rows from `first` on.
struct HeadProducts {
  const float* data;
  int64_t stride;
  int64_t first = 0;
  const float* row(int64_t t) const { return data + (t - first) * stride; }
};

// Memory that is read next, fetched to L2 a few lines at a time.
struct Ahead {
  const char* at;
  int64_t lines;  // each time
  void fetch() {
    for (int64_t i = 0; i < lines; ++i, at += 64) _mm_prefetch(at, _MM_HINT_T1);
  }
};

// Fetches a line that will be written: a store to memory waits long for it.
inline void fetch_to_write(const void* line) {
  __asm__ volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
}

constexpr int64_t kQueriesAhead = 8;  // rows of which lines are fetched before they are written

// Query head `head` for rows [begin, end).
void queries(const RowFunctions& rows, const QkvParams& p, int64_t begin, int64_t end, int head,
             HeadProducts in, Ahead first = {}, Ahead second = {}) {
  const int e = p.kv.head_dim;
  const int64_t padded = round_up(e, 32);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t rotation = int64_t{p.positions[t]} * (e / 2);
    const HeadTransform transform = {p.q_norm, p.norm_eps, p.cos + rotation, p.sin + rotation, e};
    bf16_t* q = p.q + (t * p.heads + head) * padded;
    for (int64_t at = 0; at < padded && t + kQueriesAhead < end; at += 32)
      fetch_to_write(q + kQueriesAhead * p.heads * padded + at);
    rows.query(transform, in.row(t), q);
    first.fetch();
    second.fetch();
    std::fill(q + e, q + padded, bf16_t{0});
  }
}

constexpr int kChunk = 16;  // rows whose keys and values of one head are kept together

// Whether writes w .. w + 7 are those of rows t .. t + 7 to slots next to each other, the first a
// multiple of eight.
bool are_eight_slots(const QkvParams& p, int w, int64_t t, int64_t end) {
  if (p.write_slot[w] % 8 != 0 || t + 8 > end) return false;
  for (int i = 0; i < 8; ++i)
    if (p.write_begin[t + i] != w + i || p.write_begin[t + i + 1] != w + i + 1 ||
        p.write_block[w + i] != p.write_block[w] || p.write_slot[w + i] != p.write_slot[w] + i)
      return false;
  return true;
}

// Fetches the lines that write w touches, as far as the writes from `first` on have not.
void fetch_slots(const QkvParams& p, int group, int first, int w) {
  const KvLayer& kv = p.kv;
  const int slot = p.write_slot[w], block = p.write_block[w];
  const bool is_same_panel =
      w > first && p.write_block[w - 1] == block && p.write_slot[w - 1] / 16 == slot / 16;
  const bf16_t* keys = kv.keys + kv.key_index(block, group, slot, 0);
  for (int e = 0; e < kv.head_dim && !is_same_panel; e += 2) fetch_to_write(keys + 16 * e);
  if (is_same_panel && slot % 2 != 0) return;
  const bf16_t* values = kv.values + kv.value_index(block, group, slot, 0);
  for (int e = 0; e < kv.head_dim; e += 16) fetch_to_write(values + 32 * e);
}

// Keys and values of one head for rows [begin, end), at most kChunk.
void cache_chunk(const RowFunctions& rows, const QkvParams& p, int64_t begin, int64_t end,
                 int group, HeadProducts key, HeadProducts value) {
  const KvLayer& kv = p.kv;
  const int e = kv.head_dim;
  HeadTransform transform = {p.k_norm, p.norm_eps, nullptr, nullptr, e};
  alignas(64) bf16_t keys[kChunk][kMaxHead], values[kChunk][kMaxHead];
  for (int64_t t = begin; t < end; ++t) {
    for (int w = p.write_begin[t]; w < p.write_begin[t + 1]; ++w)
      fetch_slots(p, group, p.write_begin[begin], w);
    transform.cos = p.cos + int64_t{p.positions[t]} * (e / 2);
    transform.sin = p.sin + int64_t{p.positions[t]} * (e / 2);
    if (!rows.key_value(transform, key.row(t), value.row(t), keys[t - begin], values[t - begin]))
      std::atomic_ref(p.non_finite[t]).store(true, std::memory_order_relaxed);
  }
  const auto row_of = [&](int write, int64_t from) {
    while (write >= p.write_begin[from + 1]) ++from;
    return from;
  };
  const int last = p.write_begin[end];
  int64_t t = begin;
  for (int w = p.write_begin[begin]; w < last; ++w) {
    t = row_of(w, t);
    const int slot = p.write_slot[w], block = p.write_block[w];
    bf16_t* first = kv.keys + kv.key_index(block, group, 0, 0);
    if (e % 16 == 0 && are_eight_slots(p, w, t, end)) {
      write_keys(first, slot, keys[t - begin], e);
      w += 7, t += 7;
    } else {
      write_key(first, slot, keys[t - begin], e);
    }
  }
  t = begin;
  for (int w = p.write_begin[begin]; w < last; ++w) {
    t = row_of(w, t);
    const int slot = p.write_slot[w], block = p.write_block[w];
    bf16_t* leaf = kv.values + kv.value_index(block, group, slot / 32 * 32, 0);
    const bool is_pair = slot % 2 == 0 && w + 1 < last && p.write_block[w + 1] == block &&
                         p.write_slot[w + 1] == slot + 1;
    if (!is_pair) {
      write_value(leaf, slot, values[t - begin], e);
      continue;
    }
    const int64_t next = row_of(++w, t);
    write_value_pair(leaf, slot, values[t - begin], values[next - begin], e);
  }
}

void cache_head(const RowFunctions& rows, const QkvParams& p, int64_t begin, int64_t end, int group,
                HeadProducts key, HeadProducts value) {
  for (int64_t t = begin; t < end; t += kChunk)
    cache_chunk(rows, p, t, std::min(end, t + kChunk), group, key, value);
}

// Key and value of one head to the slots that row t has in a cache of f32; whether they are finite.
bool cache_f32(const QkvParams& p, int64_t t, int group, const float* key, const float* value) {
  const KvLayer& kv = p.kv;
  bool finite = true;
  for (int64_t i = 0; i < kv.head_dim; ++i)
    finite &= std::isfinite(key[i]) && std::isfinite(value[i]);
  for (int w = p.write_begin[t]; w < p.write_begin[t + 1]; ++w) {
    const int64_t block = p.write_block[w], slot = p.write_slot[w];
    for (int64_t i = 0; i < kv.head_dim; ++i) {
      kv.f32_keys()[kv.key_index(block, group, slot, i)] = f32_to_cached_f32(key[i]);
      kv.f32_values()[kv.value_index(block, group, slot, i)] = f32_to_cached_f32(value[i]);
    }
  }
  return finite;
}

// With queries and a cache of f32 (numerics 0.1, exact).
void qkv_f32(const RowFunctions& rows, const QkvParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const int64_t e = p.kv.head_dim, padded = round_up(e, 32), groups = p.kv.kv_heads;
  float key[kMaxHead];
  for (int64_t t = begin; t < end; ++t) {
    const int64_t rotation = int64_t{p.positions[t]} * (e / 2);
    HeadTransform head = {p.q_norm, p.norm_eps, p.cos + rotation, p.sin + rotation, e};
    const float* in = p.qkv + t * p.qkv_stride;
    float* q = reinterpret_cast<float*>(p.q) + t * p.heads * padded;
    for (int h = 0; h < p.heads; ++h, in += e, q += padded) {
      rows.head(head, in, q);
      std::fill(q + e, q + padded, 0.0f);
    }
    head.norm = p.k_norm;
    for (int g = 0; g < groups; ++g, in += e) {
      rows.head(head, in, key);
      if (!cache_f32(p, t, g, key, in + groups * e))
        std::atomic_ref(p.non_finite[t]).store(true, std::memory_order_relaxed);
    }
  }
}

}  // namespace

void qkv(const RowFunctions& rows, const QkvParams& p, const Execution& on) {
  if (p.kv.is_f32()) return qkv_f32(rows, p, on);
  const auto [begin, end] = on.share.of(p.rows);
  const int e = p.kv.head_dim;
  const auto head = [&](int index) {
    return HeadProducts{p.qkv + int64_t{index} * e, p.qkv_stride};
  };
  // A few rows at a time: the products of all their heads are near.
  for (int64_t t = begin; t < end; t += kChunk) {
    const int64_t last = std::min(end, t + kChunk);
    for (int64_t row = t; row < last; ++row)
      for (int h = 0; h < p.heads; ++h) queries(rows, p, row, row + 1, h, head(h));
    for (int g = 0; g < p.kv.kv_heads; ++g)
      cache_chunk(rows, p, t, last, g, head(p.heads + g), head(p.heads + p.kv.kv_heads + g));
  }
}

void qkv_product(void (*matmul)(const MatmulParams&, const Execution&), const RowFunctions& rows,
                 const QkvProductParams& p, const Execution& on) {
  const QkvParams& then = p.then;
  const int e = then.kv.head_dim, groups = then.kv.kv_heads, each = then.heads / groups;
  const QkvShares parts = qkv_shares(then.rows, on.share.count);
  const Part of_rows{on.share.index / parts.groups, parts.rows},
      of_groups{on.share.index % parts.groups, parts.groups};
  const Part::Run its_rows = of_rows.of(then.rows, kRowGrain), its_groups = of_groups.of(groups);
  const int64_t begin = its_rows.begin, end = its_rows.end;
  if (begin == end) return;

  const Activation x = p.x.from(begin, scales_of_row(p.w.type, p.w.k, 1));
  const int64_t stride = qkv_scratch_stride(e);
  float* scratch = p.scratch + (of_groups.index * then.rows + begin) * stride;
  const auto head_weights = [&](int head) {
    Matrix w = p.w;
    w.n = e;
    w.data = static_cast<const char*>(p.w.data) + head * (e / kPanelWidth) * w.unit_bytes();
    return w;
  };
  const auto product = [&](int head, float* y) {
    matmul({.x = x,
            .w = head_weights(head),
            .rows = end - begin,
            .split_k = 1,
            .bias = p.bias ? p.bias + int64_t{head} * e : nullptr,
            .accumulate = false,
            .y = y,
            .y_stride = stride},
           Execution{});
    return HeadProducts{y, stride, begin};
  };
  // The first pair of panels of a head, which no product before it fetches.
  const auto ahead = [&](int head) {
    const Matrix w = head_weights(head);
    const int64_t lines = 2 * w.unit_bytes() / 64;
    return Ahead{static_cast<const char*>(w.data), (lines + end - begin - 1) / (end - begin)};
  };
  for (int g = static_cast<int>(its_groups.begin); g < its_groups.end; ++g) {
    const int key_head = then.heads + g, value_head = key_head + groups;
    for (int h = g * each; h < (g + 1) * each; ++h) {
      const HeadProducts query = product(h, scratch);
      if (h + 1 < (g + 1) * each)
        queries(rows, then, begin, end, h, query, ahead(h + 1));
      else
        queries(rows, then, begin, end, h, query, ahead(key_head), ahead(value_head));
    }
    const HeadProducts key = product(key_head, scratch);
    const HeadProducts value = product(value_head, scratch + round_up(e, 32));
    cache_head(rows, then, begin, end, g, key, value);
  }
}

}  // namespace invar::cpu
