// The loops of the elementwise operations: which rows, which heads, which places of the cache. What
// happens inside a row comes from an instruction set's RowFunctions.
#include "kernels/cpu/elementwise.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "numerics/math.h"

namespace invar::cpu {

namespace {

void embed_row(const bf16_t* row, int64_t width, float* out) {
  for (int64_t d = 0; d < width; ++d) out[d] = bf16_to_f32(row[d]) + 0.0f;
}

void embed_row(const float* row, int64_t width, float* out) {
  for (int64_t d = 0; d < width; ++d) out[d] = row[d] + 0.0f;
}

// The elements of one output of a packed matrix stand 16 outputs apart: bf16 as pairs, f32 alone.
void embed_packed(const bf16_t* first, int64_t width, float* out) {
  for (int64_t d = 0; d < width; ++d) out[d] = bf16_to_f32(first[d / 2 * 32 + d % 2]) + 0.0f;
}

void embed_packed(const float* first, int64_t width, float* out) {
  for (int64_t d = 0; d < width; ++d) out[d] = first[d * 16] + 0.0f;
}

template <typename T>
void embed_rows(const EmbedParams& p, Part part) {
  const T* table = static_cast<const T*>(p.table);
  const auto [begin, end] = part.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t token = p.tokens[t];
    float* out = p.out + t * p.width;
    if (!p.panels)
      embed_row(table + token * p.width, p.width, out);
    else if constexpr (std::is_same_v<T, bf16_t>)
      embed_packed(table + packed_index_bf16(token, 0, p.width), p.width, out);
    else
      embed_packed(table + packed_index_f32(token, 0, p.width), p.width, out);
  }
}

}  // namespace

void embed(const EmbedParams& p, Part part) {
  p.type == DType::bf16 ? embed_rows<bf16_t>(p, part) : embed_rows<float>(p, part);
}

void rms_norm(const RowFunctions& rows, const RmsNormParams& p, Part part) {
  const auto [begin, end] = part.of(p.rows);
  const int64_t size = size_of(p.out.type), pad = round_up(p.width, kLeafPad) - p.width;
  for (int64_t t = begin; t < end; ++t) {
    const float* x = p.x + (p.rows_of ? p.rows_of[t] : t) * p.x_stride;
    char* out = static_cast<char*>(p.out.data) + t * p.out.stride * size;
    rows.rms_norm(x, p.weight, p.width, p.eps, out, p.out.type == DType::bf16);
    std::memset(out + p.width * size, 0, static_cast<size_t>(pad * size));
  }
}

namespace {

void write_key(bf16_t* block, int place, const bf16_t* key, int head_dim) {
  bf16_t* to = block + packed_index_bf16(place, 0, head_dim);
  for (int e = 0; e < head_dim; e += 2) std::memcpy(to + 16 * e, key + e, 4);
}

void write_value(bf16_t* leaf, int place, const bf16_t* value, int head_dim) {
  bf16_t* to = leaf + packed_index_bf16(0, place % 32, 32);
  for (int e = 0; e < head_dim; ++e) to[e / 16 * 512 + e % 16 * 2] = value[e];
}

// The values of an even place and the one after it fill whole cache lines.
void write_value_pair(bf16_t* leaf, int place, const bf16_t* even, const bf16_t* odd,
                      int head_dim) {
  bf16_t* to = leaf + packed_index_bf16(0, place % 32, 32);
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

constexpr int kChunk = 16;  // rows whose keys and values of one head are kept together

// Keys and values of one head for rows [begin, end), at most kChunk.
void cache_head(const RowFunctions& rows, const QkvParams& p, HeadTransform transform,
                int64_t begin, int64_t end, int group) {
  const KvLayer& kv = p.kv;
  const int e = kv.head_dim;
  alignas(64) bf16_t keys[kChunk][256], values[kChunk][256];
  for (int64_t t = begin; t < end; ++t) {
    const float* key = p.qkv + t * p.qkv_stride + (p.heads + group) * e;
    transform.cos = p.cos + int64_t{p.positions[t]} * (e / 2);
    transform.sin = p.sin + int64_t{p.positions[t]} * (e / 2);
    if (!rows.key_value(transform, key, key + kv.kv_heads * e, keys[t - begin], values[t - begin]))
      p.non_finite[t] = true;
  }
  const auto row_of = [&](int write, int64_t from) {
    while (write >= p.write_begin[from + 1]) ++from;
    return from;
  };
  const int last = p.write_begin[end];
  int64_t t = begin;
  for (int w = p.write_begin[begin]; w < last; ++w) {
    t = row_of(w, t);
    const int place = p.write_place[w], page = p.write_page[w];
    write_key(kv.keys + kv.key_index(page, group, 0, 0), place, keys[t - begin], e);
  }
  t = begin;
  for (int w = p.write_begin[begin]; w < last; ++w) {
    t = row_of(w, t);
    const int place = p.write_place[w], page = p.write_page[w];
    bf16_t* leaf = kv.values + kv.value_index(page, group, place / 32 * 32, 0);
    const bool is_pair = place % 2 == 0 && w + 1 < last && p.write_page[w + 1] == page &&
                         p.write_place[w + 1] == place + 1;
    if (!is_pair) {
      write_value(leaf, place, values[t - begin], e);
      continue;
    }
    const int64_t next = row_of(++w, t);
    write_value_pair(leaf, place, values[t - begin], values[next - begin], e);
  }
}

}  // namespace

void qkv(const RowFunctions& rows, const QkvParams& p, Part part) {
  const auto [begin, end] = part.of(p.rows);
  const int e = p.kv.head_dim;
  const int64_t padded = round_up(e, 32);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t rotation = int64_t{p.positions[t]} * (e / 2);
    const HeadTransform transform = {p.q_norm, p.norm_eps, p.cos + rotation, p.sin + rotation, e};
    for (int h = 0; h < p.heads; ++h) {
      bf16_t* q = p.q + (t * p.heads + h) * padded;
      rows.query(transform, p.qkv + t * p.qkv_stride + h * e, q);
      std::fill(q + e, q + padded, bf16_t{0});
    }
  }
  for (int64_t t = begin; t < end; t += kChunk)
    for (int g = 0; g < p.kv.kv_heads; ++g)
      cache_head(rows, p, {p.k_norm, p.norm_eps, nullptr, nullptr, e}, t, std::min(end, t + kChunk),
                 g);
}

void log_sum_exp(const RowFunctions& rows, const LogitsParams& p, Part part) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto [begin, end] = part.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const float* x = p.logits + t * p.stride;
    LogitsPass pass = rows.logits(x, p.vocab, p.log_sum != nullptr);
    p.has_nan[t] = pass.has_nan;
    p.argmax[t] = pass.argmax;
    p.max[t] = pass.has_nan ? kNan : x[pass.argmax];
    if (p.log_sum)
      p.log_sum[t] = pass.has_nan ? kNan : math::log(orders::tree_sum(pass.segment_sums, 8));
  }
}

}  // namespace invar::cpu
