// The loops of the elementwise operations over rows. The work inside a row comes from an
// instruction set's RowFunctions.
#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/reference/reference.h"
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
void embed_token(const Matrix& w, int64_t token, float* out) {
  const T* table = static_cast<const T*>(w.data);
  if (w.layout == WeightLayout::rows)
    embed_row(table + token * w.row_elements(), w.k, out);
  else if constexpr (std::is_same_v<T, bf16_t>)
    embed_packed(table + packed_index_bf16(token, 0, w.k), w.k, out);
  else
    embed_packed(table + packed_index_f32(token, 0, w.k), w.k, out);
}

using EmbedToken = void (*)(const Matrix& table, int64_t token, float* out);

EmbedToken embed_of(DType type) {
  if (storage_of(type).has_blocks()) return reference::embed_blocks;
  return type == DType::bf16 ? embed_token<bf16_t> : embed_token<float>;
}

}  // namespace

void embed(const RowFunctions& rows, const EmbedParams& p, const Execution& on) {
  const EmbedToken embed = embed_of(p.table.type);
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) embed(p.table, p.tokens[t], p.out + t * p.table.k);
  if (p.scale != 1.0f) rows.scale(p.out + begin * p.table.k, (end - begin) * p.table.k, p.scale);
}

void rms_norm(const RowFunctions& rows, const RmsNormParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const int64_t size = size_of(p.out.type), pad = round_up(p.width, kLeafPad) - p.width;
  for (int64_t t = begin; t < end; ++t) {
    const float* x = p.x + (p.rows_of ? p.rows_of[t] : t) * p.x_stride;
    char* out = static_cast<char*>(p.out.data) + t * p.out.stride * size;
    rows.rms_norm(x, p.weight, p.width, p.eps, out, p.out.type == DType::bf16);
    if (!p.keeps_pad) std::memset(out + p.width * size, 0, static_cast<size_t>(pad * size));
  }
}

namespace {

// Calls use(row, where its output begins) and clears what is behind it.
template <typename Use>
void for_rows(const Activation& out, int64_t rows, int64_t width, const Execution& on, Use use) {
  const auto [begin, end] = on.share.of(rows);
  const int64_t size = size_of(out.type), pad = round_up(width, kLeafPad) - width;
  for (int64_t t = begin; t < end; ++t) {
    char* to = static_cast<char*>(out.data) + t * out.stride * size;
    use(t, to);
    std::memset(to + width * size, 0, static_cast<size_t>(pad * size));
  }
}

}  // namespace

void layer_norm(const RowFunctions& rows, const LayerNormParams& p, const Execution& on) {
  for_rows(p.out, p.rows, p.width, on, [&](int64_t t, void* out) {
    const float* x = p.x + (p.rows_of ? p.rows_of[t] : t) * p.x_stride;
    rows.layer_norm(x, p.weight, p.bias, p.width, p.eps, out, p.out.type == DType::bf16);
  });
}

void curve(const RowFunctions& rows, const CurveParams& p, const Execution& on) {
  for_rows(p.out, p.rows, p.width, on, [&](int64_t t, void* out) {
    rows.curve(static_cast<int>(p.curve), p.x + t * p.x_stride, p.width, out,
               p.out.type == DType::bf16);
  });
}

void gate_inputs(const RowFunctions& rows, const GateInputsParams& p, const Execution& on) {
  constexpr int64_t kBlock = 256;
  float y[kBlock];
  for_rows(p.out, p.rows, p.width, on, [&](int64_t t, char* out) {
    for (int64_t block = 0; block < p.width; block += kBlock) {
      const int64_t count = std::min(kBlock, p.width - block);
      const float* inputs = p.inputs + t * p.inputs_stride + block;
      rows.curve(static_cast<int>(p.curve), p.x + t * p.width + block, count, y, false);
      for (int64_t i = 0; i < count; ++i) y[i] = y[i] * inputs[i];
      if (p.out.type == DType::f32)
        std::memcpy(out + block * sizeof(float), y, static_cast<size_t>(count) * sizeof(float));
      else
        for (int64_t i = 0; i < count; ++i)
          reinterpret_cast<bf16_t*>(out)[block + i] = f32_to_bf16(y[i]);
    }
  });
}

void scale_rows(const RowFunctions& rows, const ScaleRowsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  rows.scale(p.x + begin * p.width, (end - begin) * p.width, p.factor[0]);
}

void scale_logits(const RowFunctions& rows, const ScaleLogitsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    rows.scale_logits(p.x + t * p.stride, p.width, p.divisor, p.cap);
}

void add(const RowFunctions& rows, const AddParams& p, const Execution& on) {
  if (p.scale == 1.0f) return reference::add(p, on);
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    rows.add_scaled(p.x + t * p.x_stride, p.bias, p.width, p.scale, p.y + t * p.width);
}

void log_sum_exp(const RowFunctions& rows, const LogitsParams& p, const Execution& on) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto [begin, end] = on.share.of(p.rows);
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
