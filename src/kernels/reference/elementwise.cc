// Embedding, RMSNorm, the step between the q, k, v product and attention, and the passes over
// logits.
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/block_places.h"
#include "kernels/reference/reference.h"
#include "numerics/math.h"

namespace invar::reference {

namespace {

// Stores f32 values as an activation row and clears its pad columns, unless they are to stay.
void store_activation(const Activation& out, int64_t row, const float* values, int64_t width,
                      bool keeps_pad = false) {
  const int64_t padded = keeps_pad ? width : round_up(width, kLeafPad);
  if (out.type == DType::bf16) {
    bf16_t* y = static_cast<bf16_t*>(out.data) + row * out.stride;
    for (int64_t i = 0; i < width; ++i) y[i] = f32_to_bf16(values[i]);
    std::fill(y + width, y + padded, bf16_t{0});
  } else {
    float* y = static_cast<float*>(out.data) + row * out.stride;
    std::copy(values, values + width, y);
    std::fill(y + width, y + padded, 0.0f);
  }
}

// An element of a table of bf16 or f32.
float table_value(const Matrix& table, int64_t token, int64_t d) {
  const bool panels = table.layout == WeightLayout::panels;
  const int64_t in_row = token * table.row_elements() + d;
  if (table.type == DType::bf16)
    return bf16_to_f32(static_cast<const bf16_t*>(
        table.data)[panels ? packed_index_bf16(token, d, table.k) : in_row]);
  return static_cast<const float*>(
      table.data)[panels ? packed_index_f32(token, d, table.k) : in_row];
}

// 1 / sqrt(sum64(x * x) / D + eps), numerics 3.
float inverse_rms(const float* x, int64_t width, float eps) {
  const float sum = orders::sum64_squares({x, static_cast<size_t>(width)});
  return 1.0f / math::sqrt(sum / static_cast<float>(width) + eps);
}

void rotate_head(const float* c, const float* s, int half, float* x) {
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = __builtin_fmaf(a, c[i], -(b * s[i]));
    x[i + half] = __builtin_fmaf(b, c[i], a * s[i]);
  }
}

// Normalises (when `norm` is given) and rotates one head of one row; numerics 5.
void prepare_head(const QkvParams& p, int64_t row, const float* in, const float* norm, float* out) {
  const int e = p.kv.head_dim, half = e / 2;
  std::copy(in, in + e, out);
  if (norm) {
    const float rs = inverse_rms(in, e, p.norm_eps);
    for (int i = 0; i < e; ++i) out[i] = (in[i] * rs) * norm[i];
  }
  const int64_t angle = int64_t{p.positions[row]} * half;
  rotate_head(p.cos + angle, p.sin + angle, half, out);
}

// A head, and its pad, as queries of the cache's type.
void store_query(const QkvParams& p, int64_t at, const float* head) {
  const int e = p.kv.head_dim;
  const int64_t padded = round_up(e, 32);
  for (int64_t i = 0; i < padded; ++i) {
    const float x = i < e ? head[i] : 0.0f;
    if (p.kv.is_f32())
      reinterpret_cast<float*>(p.q)[at + i] = x;
    else
      p.q[at + i] = f32_to_bf16(x);
  }
}

// `of`: the keys or the values of `kv`.
void store_cached(const KvLayer& kv, bf16_t* of, int64_t at, float x) {
  if (kv.is_f32())
    reinterpret_cast<float*>(of)[at] = f32_to_cached_f32(x);
  else
    of[at] = f32_to_cached_bf16(x);
}

void copy_element(const KvLayer& kv, bf16_t* of, int64_t to, int64_t from) {
  if (kv.is_f32())
    reinterpret_cast<float*>(of)[to] = reinterpret_cast<float*>(of)[from];
  else
    of[to] = of[from];
}

bool is_finite(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7f800000) != 0x7f800000;
}

}  // namespace

void embed(const EmbedParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const int64_t width = p.table.k;
  for (int64_t t = begin; t < end; ++t) {
    float* out = p.out + t * width;
    if (storage_of(p.table.type).has_blocks()) {
      embed_blocks(p.table, p.tokens[t], out);
      continue;
    }
    for (int64_t d = 0; d < width; ++d)
      out[d] = table_value(p.table, p.tokens[t], d) + 0.0f;  // + 0: flushes subnormals
  }
  if (p.scale == 1.0f) return;
  for (int64_t i = begin * width; i < end * width; ++i) p.out[i] = p.out[i] * p.scale;
}

void embed_blocks(const Matrix& table, int64_t token, float* out) {
  const BlockPlaces places(table);
  bf16_t elements[kMaxBlock];
  for (int64_t d = 0; d < table.k; d += places.block()) {
    places.read(table.data, token, d / places.block(), elements);
    for (int i = 0; i < places.block(); ++i) out[d + i] = bf16_to_f32(elements[i]) + 0.0f;
  }
}

void rms_norm(const RmsNormParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  float y[256];
  for (int64_t t = begin; t < end; ++t) {
    const float* x = p.x + (p.rows_of ? p.rows_of[t] : t) * p.x_stride;
    const float rs = inverse_rms(x, p.width, p.eps);
    // In blocks, so that no width needs memory of its own.
    for (int64_t block = 0; block < p.width; block += 256) {
      const int64_t count = std::min<int64_t>(256, p.width - block);
      for (int64_t i = 0; i < count; ++i) y[i] = (x[block + i] * rs) * p.weight[block + i];
      Activation out = p.out;
      out.data = static_cast<char*>(p.out.data) + block * size_of(p.out.type);
      store_activation(out, t, y, count, p.keeps_pad);
    }
  }
}

void layer_norm(const LayerNormParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  std::vector<float> y(static_cast<size_t>(p.width));
  const float width = static_cast<float>(p.width);
  for (int64_t t = begin; t < end; ++t) {
    const float* x = p.x + (p.rows_of ? p.rows_of[t] : t) * p.x_stride;
    const float mean = orders::sum64({x, y.size()}) / width;
    for (int64_t i = 0; i < p.width; ++i) y[i] = x[i] - mean;
    const float rs = 1.0f / math::sqrt(orders::sum64_squares(y) / width + p.eps);
    for (int64_t i = 0; i < p.width; ++i) y[i] = (y[i] * rs) * p.weight[i] + p.bias[i];
    store_activation(p.out, t, y.data(), p.width);
  }
}

void curve(const CurveParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  float y[256];
  for (int64_t t = begin; t < end; ++t)
    for (int64_t block = 0; block < p.width; block += 256) {
      const int64_t count = std::min<int64_t>(256, p.width - block);
      for (int64_t i = 0; i < count; ++i)
        y[i] = math::curve(p.curve, p.x[t * p.x_stride + block + i]);
      Activation out = p.out;
      out.data = static_cast<char*>(p.out.data) + block * size_of(p.out.type);
      store_activation(out, t, y, count);
    }
}

void gate_inputs(const GateInputsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  float y[256];
  for (int64_t t = begin; t < end; ++t)
    for (int64_t block = 0; block < p.width; block += 256) {
      const int64_t count = std::min<int64_t>(256, p.width - block);
      const float* x = p.x + t * p.width + block;
      const float* inputs = p.inputs + t * p.inputs_stride + block;
      for (int64_t i = 0; i < count; ++i) y[i] = math::curve(p.curve, x[i]) * inputs[i];
      Activation out = p.out;
      out.data = static_cast<char*>(p.out.data) + block * size_of(p.out.type);
      store_activation(out, t, y, count);
    }
}

void scale_rows(const ScaleRowsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t i = begin * p.width; i < end * p.width; ++i) p.x[i] = p.x[i] * p.factor[0];
}

void rotate_heads(const RotateHeadsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const int half = p.head_dim / 2;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t angle = int64_t{p.positions[t]} * half;
    for (int h = 0; h < p.heads; ++h)
      rotate_head(p.cos + angle, p.sin + angle, half,
                  p.x + t * p.x_stride + int64_t{h} * p.head_dim);
  }
}

void gate_output(const OutputGateParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0; i < p.width; ++i) {
      const float gate = 1.0f / (1.0f + math::exp(-p.gate[t * p.gate_stride + i]));
      const int64_t at = t * p.x.stride + i;
      if (p.x.type == DType::bf16) {
        bf16_t& x = static_cast<bf16_t*>(p.x.data)[at];
        x = f32_to_bf16(bf16_to_f32(x) * gate);
      } else {
        static_cast<float*>(p.x.data)[at] *= gate;
      }
    }
}

// Row by row, whole.
void add_norm(const AddNormParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const Execution whole = on.of({});
  for (int64_t t = begin; t < end; ++t) {
    float *x = p.x + t * p.x_stride, *y = p.y + t * p.width;
    if (p.norm)
      rms_norm({.x = x,
                .x_stride = p.x_stride,
                .rows_of = nullptr,
                .weight = p.norm,
                .eps = p.eps,
                .rows = 1,
                .width = p.width,
                .out = {x, DType::f32, p.x_stride},
                .keeps_pad = true},
               whole);
    add({x, p.x_stride, p.norm ? nullptr : p.bias, 1, p.width, y, p.scale}, whole);
    if (!p.out.data) continue;
    Activation out = p.out;
    out.data = static_cast<char*>(out.data) + t * out.stride * size_of(out.type);
    if (p.next)
      rms_norm({.x = y,
                .x_stride = p.width,
                .rows_of = nullptr,
                .weight = p.next,
                .eps = p.eps,
                .rows = 1,
                .width = p.width,
                .out = out},
               whole);
    else
      round({.x = y,
             .x_stride = p.width,
             .rows_of = nullptr,
             .rows = 1,
             .width = p.width,
             .out = out},
            whole);
  }
}

void scale_logits(const ScaleLogitsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t v = 0; v < p.width; ++v) {
      float& x = p.x[t * p.stride + v];
      if (p.divisor != 1.0f) x = x / p.divisor;
      if (p.cap > 0) x = p.cap * math::half_tanh((x + x) / p.cap);
    }
}

void place_values(const PlaceValuesParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t h = 0; h < p.heads; ++h) {
      const float* x = p.x + (t * p.heads + h) * p.width;
      float* out = p.out + t * p.out_stride + h * p.head_dim;
      for (int32_t i = 0; i < p.head_dim; ++i) out[i] = i < p.width ? x[i] * p.scale : 0.0f;
    }
}

void qkv(const QkvParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const int e = p.kv.head_dim, groups = p.kv.kv_heads;
  const int64_t padded = round_up(e, 32);
  float head[576];
  for (int64_t t = begin; t < end; ++t) {
    const float* in = p.qkv + t * p.qkv_stride;
    for (int h = 0; h < p.heads; ++h, in += e) {
      prepare_head(p, t, in, p.q_norm, head);
      store_query(p, (t * p.heads + h) * padded, head);
    }
    for (int g = 0; g < groups; ++g, in += e) {
      const float* value = in + groups * e;
      prepare_head(p, t, in, p.k_norm, head);
      for (int i = 0; i < e; ++i)
        if (!is_finite(head[i]) || !is_finite(value[i])) p.non_finite[t] = true;
      for (int w = p.write_begin[t]; w < p.write_begin[t + 1]; ++w)
        for (int i = 0; i < e; ++i) {
          const int block = p.write_block[w], slot = p.write_slot[w];
          store_cached(p.kv, p.kv.keys, p.kv.key_index(block, g, slot, i), head[i]);
          store_cached(p.kv, p.kv.values, p.kv.value_index(block, g, slot, i), value[i]);
        }
    }
  }
}

void round(const RoundParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    store_activation(p.out, t, p.x + (p.rows_of ? p.rows_of[t] : t) * p.x_stride, p.width);
}

void add(const AddParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t d = 0; d < p.width; ++d) {
      float x = p.x[t * p.x_stride + d];
      if (p.bias) x = x + p.bias[d];
      if (p.scale != 1.0f) x = x * p.scale;
      p.y[t * p.width + d] = p.y[t * p.width + d] + x;
    }
}

void add_silu(const AddSiluParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.count);
  for (int64_t i = begin; i < end; ++i) p.y[i] = p.y[i] + p.x[i] / (1.0f + math::exp(-p.x[i]));
}

namespace {

// The indexer's keys, by one share.
void copy_index(const CopySlotsParams& p, const Execution& on) {
  const KvLayer& kv = p.kv;
  if (!kv.index_keys || on.share.index > 0) return;
  for (int64_t i = 0; i < p.count; ++i) {
    const SlotCopy& c = p.copies[i];
    for (int64_t slot = c.begin; slot < c.end; ++slot)
      for (int64_t e = 0; e < kv.index_dim; ++e)
        kv.index_keys[kv.index_at(c.to, slot, e)] = kv.index_keys[kv.index_at(c.from, slot, e)];
  }
}

}  // namespace

void copy_slots(const CopySlotsParams& p, const Execution& on) {
  const KvLayer& kv = p.kv;
  copy_index(p, on);
  const auto [first, last] = on.share.of(kv.kv_heads);
  for (int64_t g = first; g < last; ++g)
    for (int64_t i = 0; i < p.count; ++i) {
      const SlotCopy& c = p.copies[i];
      for (int64_t slot = c.begin; slot < c.end; ++slot)
        for (int64_t e = 0; e < kv.head_dim; ++e) {
          copy_element(kv, kv.keys, kv.key_index(c.to, g, slot, e),
                       kv.key_index(c.from, g, slot, e));
          copy_element(kv, kv.values, kv.value_index(c.to, g, slot, e),
                       kv.value_index(c.from, g, slot, e));
        }
    }
}

void log_sum_exp(const LogitsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const std::span row(p.logits + t * p.stride, static_cast<size_t>(p.vocab));
    p.has_nan[t] = std::any_of(row.begin(), row.end(), [](float x) { return x != x; });
    p.argmax[t] = 0;
    p.max[t] = std::numeric_limits<float>::quiet_NaN();
    if (p.log_sum) p.log_sum[t] = p.max[t];
    if (p.has_nan[t]) continue;
    const auto top = std::max_element(row.begin(), row.end());
    p.argmax[t] = static_cast<int32_t>(top - row.begin());
    p.max[t] = *top;
    if (p.log_sum) p.log_sum[t] = orders::log_sum_exp(row).log_sum;
  }
}

void round_in_place(const RoundInPlaceParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.count, 64);
  for (int64_t i = begin; i < end; ++i) p.x[i] = bf16_to_f32(f32_to_bf16(p.x[i]));
}

}  // namespace invar::reference
