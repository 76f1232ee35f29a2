#include "kernels/cpu/backward.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/words.h"

namespace invar::cpu {

namespace {

constexpr int64_t kLeaf = 32, kBlock = 16;
constexpr int64_t kColumns = 64;  // columns that a sum over rows takes at once

bf16_t* row_of(const Activation& x, int64_t row) {
  return static_cast<bf16_t*>(x.data) + row * x.stride;
}

void clear_pad(const Activation& out, int64_t row, int64_t width) {
  bf16_t* y = row_of(out, row);
  std::fill(y + width, y + round_up(width, kLeafPad), bf16_t{0});
}

// Calls use(first column, how many) for the columns of a share, in runs of up to kColumns.
template <typename Use>
void for_columns(int64_t width, Part part, Use use) {
  const auto [begin, end] = part.of(width, kBlock);
  for (int64_t i = begin; i < end; i += kColumns) use(i, std::min(kColumns, end - i));
}

}  // namespace

void round(const BackwardRows& rows, const RoundParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    rows.round(p.x + (p.rows_of ? p.rows_of[t] : t) * p.x_stride, p.width, row_of(p.out, t));
    clear_pad(p.out, t, p.width);
  }
  _mm_sfence();  // the sets may write past the caches
}

// 32 rows by 16 columns at a time: their pairs as words, then the words transposed, a line of each
// column.
void transpose(const TransposeParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows, kLeaf);
  const int64_t columns = p.columns.count;
  CHECK(p.rows % kLeaf == 0, "rows of a sum come in leaves");
  alignas(64) uint32_t words[16 * 16], lines[16 * 16];
  for (int64_t t = begin; t < end; t += kLeaf)
    for (int64_t i = 0; i < columns; i += kBlock) {
      const bf16_t* from = row_of(p.x, t) + p.columns.at(i);
      if (i + kBlock > columns) {
        for (int64_t c = 0; i + c < columns; ++c)
          for (int64_t r = 0; r < kLeaf; ++r)
            row_of(p.out, i + c)[t + r] = from[r * p.x.stride + c];
        continue;
      }
      for (int64_t r = 0; r < kLeaf; r += 2)
        interleave16(from + r * p.x.stride, from + (r + 1) * p.x.stride, words + r * 8);
      for (int64_t c = 0; c < kBlock; c += 8)
        for (int64_t r = 0; r < 16; r += 8)
          transpose8(words + r * 16 + c, 64, lines + c * 16 + r, 16);
      for (int64_t c = 0; c < kBlock; ++c) {
        const __m256i* line = reinterpret_cast<const __m256i*>(lines + c * 16);
        write_line(line[0], line[1], row_of(p.out, i + c) + t);
      }
    }
  _mm_sfence();
}

// Where the first row is the second of a pair of inner elements: a few rows behind an odd number.
void pack_odd_columns(const PackColumnsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows, kLeaf);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t n = 0; n < p.width; ++n)
      p.out[packed_index_bf16(n, p.inner.at(t), p.inner_size)] = p.x[t * p.x_stride + n];
}

void pack_columns(const PackColumnsParams& p, const Execution& on) {
  CHECK(p.layout == WeightLayout::panels, "columns are packed into panels on a CPU");
  if (p.inner.first % 2 != 0) return pack_odd_columns(p, on);
  const auto [begin, end] = on.share.of(p.rows, kLeaf);
  for (int64_t leaf = begin; leaf < end; leaf += kLeaf)
    for (int64_t n = 0; n < p.width; n += kBlock)
      for (int64_t t = leaf; t < std::min(leaf + kLeaf, end); t += 2) {
        const bf16_t* even = p.x + t * p.x_stride + n;
        bf16_t* out = p.out + packed_index_bf16(n, p.inner.at(t), p.inner_size);
        if (n + kBlock <= p.width && t + 1 < p.rows) {
          interleave16(even, even + p.x_stride, out, write_line);
          continue;
        }
        for (int64_t c = 0; n + c < p.width && c < kBlock; ++c) {
          out[2 * c] = even[c];
          if (t + 1 < p.rows) out[2 * c + 1] = even[p.x_stride + c];
        }
      }
  _mm_sfence();
}

void bias_gradient(const BackwardRows& rows, const BiasGradientParams& p, const Execution& on) {
  for_columns(p.columns.count, on.share, [&](int64_t i, int64_t count) {
    // The columns of one matrix of a pair are neighbours in runs of 16 only.
    const int64_t run = p.columns.pair < 0 ? count : kBlock;
    for (int64_t c = 0; c < count; c += run)
      rows.bias_gradient(row_of(p.dy, 0) + p.columns.at(i + c), p.dy.stride, p.rows / kLeaf,
                         std::min(run, count - c), p.gradient + i + c);
  });
}

void norm_backward(const BackwardRows& rows, const NormBackwardParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t)
    p.rs[t] = rows.norm_backward(p.dy + t * p.width, p.x + t * p.width, p.weight, p.width, p.eps,
                                 p.dx + t * p.width);
}

void norm_gradient(const BackwardRows& rows, const NormGradientParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.width, kBlock);
  if (begin < end)
    rows.norm_gradient({.dy = p.dy + begin,
                        .dy_stride = p.dy_stride,
                        .x = p.x + begin,
                        .x_stride = p.x_stride,
                        .rs = p.rs,
                        .rs_stride = p.rs_stride,
                        .leaves = p.rows / kLeaf,
                        .heads = p.heads,
                        .width = p.width,
                        .count = end - begin,
                        .gradient = p.gradient + begin});
}

void gate_backward(const BackwardRows& rows, const GateBackwardParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const int64_t width = 2 * round_up(p.width, kPanelWidth);
  for (int64_t t = begin; t < end; ++t)
    rows.gate_backward({.gate_up = p.gate_up + t * width,
                        .gate_bias = p.gate_bias,
                        .up_bias = p.up_bias,
                        .d_gated = p.d_gated + t * p.width,
                        .width = p.width,
                        .out = row_of(p.out, t),
                        .is_gelu = p.curve == Nonlinearity::gelu_tanh});
  _mm_sfence();  // the sets may write past the caches
}

void qkv_backward(const BackwardRows& rows, const QkvBackwardParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  const int64_t e = p.head_dim, half = e / 2, rotated = p.heads + p.kv_heads;
  for (int64_t t = begin; t < end; ++t) {
    const float* cos = p.cos + p.positions[t] * half;
    const float* sin = p.sin + p.positions[t] * half;
    for (int64_t h = 0; h < rotated + p.kv_heads; ++h) {
      float* dy = p.d_qkv + t * p.d_qkv_stride + h * e;
      bf16_t* dx = row_of(p.out, t) + h * e;
      if (h < rotated) rows.rotate_back(dy, cos, sin, half);
      const bool is_alone = h < rotated && !p.is_joint;
      const float* norm = !is_alone ? nullptr : h < p.heads ? p.q_norm : p.k_norm;
      if (norm)
        p.rs[t * rotated + h] =
            rows.head_norm_backward(dy, p.qkv + t * p.qkv_stride + h * e, norm, e, p.norm_eps, dx);
      else
        rows.round(dy, e, dx);
    }
    const auto joint = [&](int64_t first, int64_t heads, const float* norm) {
      return rows.head_norm_backward(p.d_qkv + t * p.d_qkv_stride + first * e,
                                     p.qkv + t * p.qkv_stride + first * e, norm, heads * e,
                                     p.norm_eps, row_of(p.out, t) + first * e);
    };
    if (p.is_joint) {
      p.rs[2 * t] = joint(0, p.heads, p.q_norm);
      p.rs[2 * t + 1] = joint(p.heads, p.kv_heads, p.k_norm);
    }
    clear_pad(p.out, t, (rotated + p.kv_heads) * e);
  }
  _mm_sfence();  // the sets may write past the caches
}

void embed_gradient(const BackwardRows& rows, const EmbedGradientParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.width, kBlock);
  for (int64_t t = 0; t < p.rows; ++t) {
    const float* dx = p.dx + t * p.width;
    float* gradient = p.gradient + int64_t{p.tokens[t]} * p.width;
    if (p.scale == 1)
      rows.add(dx + begin, end - begin, gradient + begin);
    else
      for (int64_t i = begin; i < end; ++i) gradient[i] = gradient[i] + dx[i] * p.scale;
  }
}

void loss(const BackwardRows& rows, const LossParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    clear_pad(p.out, t, p.vocab);
    if (p.weights[t] == 0.0f) {
      std::fill_n(row_of(p.out, t), p.vocab, bf16_t{0});
      continue;
    }
    LossRow row{.logits = p.logits + t * p.stride,
                .max = p.max[t],
                .log_sum = p.log_sum[t],
                .weight = p.weights[t],
                .target = p.targets[t],
                .teacher_share = p.teacher_share,
                .vocab = p.vocab,
                .out = row_of(p.out, t)};
    if (p.teacher) {
      row.teacher = p.teacher + t * p.stride;
      row.teacher_max = p.teacher_max[t];
      row.teacher_log_sum = p.teacher_log_sum[t];
    }
    rows.loss(row);
  }
}

// Whole tensors, dealt out by their sizes.
void squares(const BackwardRows& rows, const SquaresParams& p, const Execution& on) {
  int64_t total = 1, before = 0;
  for (int64_t i = 0; i < p.count; ++i) total += p.counts[i];
  for (int64_t i = 0; i < p.count; ++i) {
    if (before * on.share.count / total == on.share.index)
      p.sums[i] = rows.squares(p.tensors[i], p.counts[i]);
    before += p.counts[i];
  }
}

void adam(const BackwardRows& rows, const AdamParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.count, kBlock);
  rows.adam({.gradient = p.gradient + begin,
             .master = p.master + begin,
             .first = p.first + begin,
             .second = p.second + begin,
             .weights = p.weights + begin,
             .count = end - begin,
             .gradient_scale = p.gradient_scale,
             .rate = p.rate,
             .beta1 = p.beta1,
             .beta2 = p.beta2,
             .eps = p.eps,
             .decay = p.decay,
             .first_scale = p.first_scale,
             .second_scale = p.second_scale});
}

void add_gradient(const BackwardRows& rows, const AddGradientParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.count, kBlock);
  rows.add(p.x + begin, end - begin, p.y + begin);
}

}  // namespace invar::cpu
