// Attention's backward, numerics 9, as matrix products over blocks of slots and queries. A unit of
// work is one key/value head of one sequence.
//
// Scores are computed with slots as rows, so that p and ds come out as the rows that dv and dk
// need; for dq, ds is packed and the keys' columns are the rows. Chains go on in memory: dk and dv
// through heads and blocks of queries, dq through blocks of slots. They are open: + 0 comes when
// they are written as rows of d_qkv.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/backward.h"
#include "kernels/cpu/words.h"
#include "kernels/pack.h"

namespace invar::cpu {

namespace {

constexpr int64_t kSlots = 128, kQueries = 256;  // of a block
constexpr int64_t kMaxHead = 576;

// A unit's arrays in a share's scratch memory; see Layout for sizes.
struct Memory {
  bf16_t *keys, *values;                  // [position][round_up(E, 32)]
  bf16_t* key_columns;                    // [E][position]
  bf16_t *queries, *d_outs;               // packed: positions are outputs
  bf16_t *query_columns, *d_out_columns;  // packed: positions are inner elements
  float *max, *one_by_sum, *mean;         // [position]
  float* d_queries;                       // [E][position]
  float *d_keys, *d_values;               // [position][lane_stride()]
  float *scores, *d_weights;              // [kSlots][kQueries]
  bf16_t *p, *ds, *ds_packed;             // [kSlots][kOutStride], and packed
};
constexpr int64_t kOutStride = kQueries + 32;

// Hands out 64-byte aligned pieces of memory, or only counts them.
class Layout {
 public:
  Layout(int64_t positions, int64_t head_dim, std::byte* base)
      : positions(round_up(positions, 32)), padded(round_up(head_dim, 32)), base_(base) {
    const int64_t lanes = round_up(head_dim, 16);
    take(memory.keys, this->positions * padded);
    take(memory.values, this->positions * padded);
    take(memory.key_columns, lanes * column_stride());
    take(memory.queries, this->positions * padded);
    take(memory.d_outs, this->positions * padded);
    take(memory.query_columns, this->positions * lanes);
    take(memory.d_out_columns, this->positions * lanes);
    for (float** stat : {&memory.max, &memory.one_by_sum, &memory.mean})
      take(*stat, this->positions);
    take(memory.d_queries, lanes * column_stride());
    take(memory.d_keys, this->positions * lane_stride());
    take(memory.d_values, this->positions * lane_stride());
    take(memory.scores, kSlots * kQueries);
    take(memory.d_weights, kSlots * kQueries);
    take(memory.p, kSlots * kOutStride);
    take(memory.ds, kSlots * kOutStride);
    take(memory.ds_packed, kSlots * kQueries);
  }
  int64_t bytes() const { return used_; }
  // Elements between columns.
  int64_t column_stride() const { return activation_stride(positions); }
  // Between rows of sums over queries: an odd number of lines.
  int64_t lane_stride() const { return padded + 16; }

  const int64_t positions, padded;
  Memory memory{};

 private:
  template <typename T>
  void take(T*& piece, int64_t count) {
    if (base_) piece = reinterpret_cast<T*>(base_ + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
  }
  std::byte* base_;
  int64_t used_ = 0;
};

// Rows of bf16 as a packed matrix whose outputs are the rows' elements: `count`
// rows are there, as many as fill whole leaves are written.
void pack_by_rows(const bf16_t* rows, int64_t stride, int64_t count, int64_t width,
                  int64_t inner_size, bf16_t* out) {
  constexpr bf16_t kZero[16] = {};
  for (int64_t n = 0; n < width; n += 16)
    for (int64_t t = 0; t < round_up(count, 32); t += 2) {
      bf16_t* to = out + packed_index_bf16(n, t, inner_size);
      const bf16_t* even = t < count ? rows + t * stride + n : kZero;
      const bf16_t* odd = t + 1 < count ? rows + (t + 1) * stride + n : kZero;
      if (n + 16 <= width) {
        interleave16(even, odd, to);
      } else {
        for (int64_t i = 0; i < width - n; ++i) to[2 * i] = even[i], to[2 * i + 1] = odd[i];
      }
    }
}

class Unit {
 public:
  Unit(RunProduct run, const BackwardRows& rows, const AttentionBackwardParams& p, int64_t begin,
       int64_t count, int64_t group, std::byte* scratch)
      : run_(run),
        rows_(rows),
        p_(p),
        f_(p.forward),
        begin_(begin),
        count_(count),
        group_(group),
        e_(f_.kv.head_dim),
        layout_(p.max_positions, e_, scratch),
        m_(layout_.memory) {}

  void run() {
    load_keys_and_values();
    const int64_t heads = f_.heads / f_.kv.kv_heads, k = f_.heads + group_;
    for (float* sums : {m_.d_keys, m_.d_values})
      std::fill_n(sums, round_up(count_, 32) * layout_.lane_stride(), 0.0f);
    for (int64_t head = group_ * heads; head < (group_ + 1) * heads; ++head) {
      load_head(head);
      for (int64_t slot = 0; slot < count_; slot += kSlots)
        for (int64_t query = slot; query < count_; query += kQueries) {
          if (f_.window > 0 && query >= slot + kSlots - 1 + f_.window) break;
          block(slot, query);
        }
      store_d_queries(head);
    }
    for (int64_t j = 0; j < count_; ++j) {
      store_row(m_.d_keys + j * layout_.lane_stride(), out(j, k));
      store_row(m_.d_values + j * layout_.lane_stride(), out(j, k + f_.kv.kv_heads));
    }
    _mm_sfence();  // such stores have an order only by fences
  }

 private:
  float* out(int64_t position, int64_t head) const {
    return p_.d_qkv + (begin_ + position) * p_.d_qkv_stride + head * e_;
  }

  // From the blocks: rows of keys and values, and columns of keys with zeros
  // after the last slot.
  void load_keys_and_values() {
    const KvLayer& kv = f_.kv;
    const int32_t* table = f_.tables[f_.table_of[begin_]];
    const int64_t padded = layout_.padded, stride = layout_.column_stride();
    alignas(64) bf16_t even[16], odd[16];
    for (int64_t j = 0; j < count_; j += 16) {
      const int64_t block = table[j / kv.block_size], slot = j % kv.block_size;
      const int64_t left = std::min<int64_t>(16, count_ - j);
      for (int64_t e = 0; e < padded; e += 2) {  // a word of each of 16 slots
        const bf16_t* words = kv.keys + kv.key_index(block, group_, slot, e);
        separate16(words, even, odd);
        for (int64_t i = 0; i < left; ++i)
          std::memcpy(m_.keys + (j + i) * padded + e, words + 2 * i, 4);
        for (int64_t i = left; i < 16; ++i) even[i] = odd[i] = 0;
        if (e < e_) std::memcpy(m_.key_columns + e * stride + j, even, sizeof even);
        if (e + 1 < e_) std::memcpy(m_.key_columns + (e + 1) * stride + j, odd, sizeof odd);
      }
    }
    if (const int64_t end = round_up(count_, 16); end % 32)
      for (int64_t e = 0; e < e_; ++e)
        std::fill_n(m_.key_columns + e * stride + end, 16, bf16_t{0});
    for (int64_t j = 0; j < count_; j += 2) {
      const int64_t block = table[j / kv.block_size], slot = j % kv.block_size;
      for (int64_t e = 0; e < e_; e += 16) {
        separate16(kv.values + kv.value_index(block, group_, slot, e), even, odd);
        const int64_t left = std::min<int64_t>(16, e_ - e);
        std::copy_n(even, left, m_.values + j * padded + e);
        if (j + 1 < count_) std::copy_n(odd, left, m_.values + (j + 1) * padded + e);
      }
    }
    for (int64_t j = 0; j < count_; ++j)
      std::fill(m_.values + j * padded + e_, m_.values + (j + 1) * padded, bf16_t{0});
  }

  void load_head(int64_t head) {
    const int64_t padded = layout_.padded, positions = layout_.positions;
    const bf16_t* q = f_.q + (begin_ * f_.heads + head) * padded;
    const int64_t q_stride = f_.heads * padded;
    const bf16_t* d_out =
        static_cast<const bf16_t*>(p_.d_out.data) + begin_ * p_.d_out.stride + head * e_;
    const bf16_t* o = static_cast<const bf16_t*>(f_.out.data) + begin_ * f_.out.stride + head * e_;
    pack_rows(DType::bf16, q, q_stride, 0, count_, e_, {}, m_.queries);
    pack_rows(DType::bf16, d_out, p_.d_out.stride, 0, count_, e_, {}, m_.d_outs);
    pack_by_rows(q, q_stride, count_, e_, positions, m_.query_columns);
    pack_by_rows(d_out, p_.d_out.stride, count_, e_, positions, m_.d_out_columns);
    for (int64_t t = 0; t < count_; ++t) {
      const int64_t stat = (begin_ + t) * f_.heads + head;
      m_.max[t] = p_.max[stat];
      m_.one_by_sum[t] = 1.0f / p_.sum[stat];
      m_.mean[t] = rows_.dot_bf16(d_out + t * p_.d_out.stride, o + t * f_.out.stride, e_);
      // The next head's rows, short and far apart, are wanted by this core soon.
      for (const bf16_t* next : {q + t * q_stride + padded, d_out + t * p_.d_out.stride + e_,
                                 o + t * f_.out.stride + e_})
        for (int64_t e = 0; e < e_; e += 32)
          _mm_prefetch(reinterpret_cast<const char*>(next + e), _MM_HINT_T1);
    }
    for (int64_t e = 0; e < e_; ++e)
      std::fill_n(m_.d_queries + e * layout_.column_stride(), round_up(count_, 32), 0.0f);
  }

  // Slots [slot, ..) by queries [query, ..).
  void block(int64_t slot, int64_t query) {
    const int64_t slots = std::min(kSlots, count_ - slot);
    const int64_t queries = std::min(kQueries, count_ - query);
    const int64_t padded = layout_.padded, positions = layout_.positions;
    const int64_t slot_leaves = (slots + 31) / 32, query_leaves = (queries + 31) / 32;
    const int64_t leaf = 32 * kPanelWidth;  // elements of a panel's leaf

    PanelProduct product{.f32 = false, .split_k = 1};
    product.is_open = true;
    product.x_stride = padded * 2;
    product.rows = round_up(slots, 16);
    product.panel_bytes = padded * kPanelWidth * 2;
    product.panels = query_leaves * 2;
    product.leaves = padded / 32;
    product.outputs = query_leaves * 32;
    product.y_stride = kQueries;
    multiply(product, m_.keys + slot * padded, m_.queries + query * padded, m_.scores);
    multiply(product, m_.values + slot * padded, m_.d_outs + query * padded, m_.d_weights);
    weigh(slot, slot_leaves * 32, query, query_leaves * 32);

    product.extend = true;
    product.x_stride = kOutStride * 2;
    product.panel_bytes = positions * kPanelWidth * 2;
    product.panels = (e_ + 15) / 16;
    product.leaves = query_leaves;
    product.outputs = round_up(e_, 16);
    product.y_stride = layout_.lane_stride();
    const int64_t first_leaf = query / 32 * leaf, first_sum = slot * layout_.lane_stride();
    multiply(product, m_.ds, m_.query_columns + first_leaf, m_.d_keys + first_sum);
    multiply(product, m_.p, m_.d_out_columns + first_leaf, m_.d_values + first_sum);

    product.x_stride = layout_.column_stride() * 2;
    product.rows = round_up(e_, 16);
    product.panel_bytes = slot_leaves * leaf * 2;
    product.panels = query_leaves * 2;
    product.leaves = slot_leaves;
    product.outputs = query_leaves * 32;
    product.y_stride = layout_.column_stride();
    multiply(product, m_.key_columns + slot, m_.ds_packed, m_.d_queries + query);
  }

  void multiply(PanelProduct product, const bf16_t* x, const bf16_t* w, float* y) const {
    product.x = x;
    product.w = w;
    product.y = y;
    run_(product);
  }

  void weigh(int64_t slot, int64_t slots, int64_t query, int64_t queries) const {
    rows_.weigh({.slot = slot,
                 .slots = slots,
                 .query = query,
                 .queries = queries,
                 .queries_end = count_,
                 .window = f_.window,
                 .scores = m_.scores,
                 .d_weights = m_.d_weights,
                 .stride = kQueries,
                 .max = m_.max + query,
                 .one_by_sum = m_.one_by_sum + query,
                 .mean = m_.mean + query,
                 .c = score_scale(f_).factor,
                 .scale = gradient_scale(f_),
                 .p = m_.p,
                 .ds = m_.ds,
                 .out_stride = kOutStride,
                 .ds_packed = m_.ds_packed});
  }

  // A row of sums, ended with + 0, as a row of d_qkv. It goes past the caches, where the memory
  // allows: the rows of a head lie far apart, and nobody reads them soon.
  void store_row(const float* sums, float* to) const {
    int64_t e = 0;
    if (reinterpret_cast<uintptr_t>(to) % 32 == 0)
      for (; e + 8 <= e_; e += 8)
        _mm256_stream_ps(to + e, _mm256_add_ps(_mm256_loadu_ps(sums + e), _mm256_setzero_ps()));
    for (; e < e_; ++e) to[e] = sums[e] + 0.0f;
  }

  // The columns become rows of d_qkv.
  void store_d_queries(int64_t head) const {
    const int64_t stride = layout_.column_stride();
    alignas(32) float rows[8][kMaxHead];
    for (int64_t t = 0; t < count_; t += 8) {
      for (int64_t e = 0; e < e_; e += 8)
        transpose8(m_.d_queries + e * stride + t, stride * 4,
                   reinterpret_cast<uint32_t*>(rows[0]) + e, kMaxHead);
      for (int64_t i = 0; i < 8 && t + i < count_; ++i) store_row(rows[i], out(t + i, head));
    }
  }

  const RunProduct run_;
  const BackwardRows& rows_;
  const AttentionBackwardParams& p_;
  const AttentionParams& f_;
  const int64_t begin_, count_, group_, e_;
  const Layout layout_;
  const Memory& m_;
};

}  // namespace

int64_t attention_backward_scratch(int64_t max_positions, int64_t head_dim) {
  return Layout(max_positions, head_dim, nullptr).bytes();
}

void attention_backward(RunProduct run, const BackwardRows& rows, const AttentionBackwardParams& p,
                        const Execution& on) {
  const AttentionParams& f = p.forward;
  std::byte* scratch = p.scratch + on.share.index * p.scratch_stride;
  const auto for_units = [&](auto use) {
    for (int64_t begin = 0, end = 0; begin < f.rows; begin = end) {
      while (end < f.rows && f.table_of[end] == f.table_of[begin]) ++end;
      const int64_t cost = (end - begin) * (end - begin + kSlots);
      for (int64_t g = 0; g < f.kv.kv_heads; ++g) use(begin, end - begin, g, cost);
    }
  };
  int64_t total = 1, before = 0;
  for_units([&](int64_t, int64_t, int64_t, int64_t cost) { total += cost; });
  for_units([&](int64_t begin, int64_t count, int64_t group, int64_t cost) {
    if (before * on.share.count / total == on.share.index)
      Unit(run, rows, p, begin, count, group, scratch).run();
    before += cost;
  });
}

}  // namespace invar::cpu
