#include "kernels/cpu/hopper.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/hopper_panel.h"
#include "kernels/cpu/panel_product.h"
#include "kernels/reference/reference.h"
#include "numerics/hopper_step.h"
#include "numerics/math.h"

namespace invar::hopper {

StepInput expand_input(const bf16_t* x) {
  StepInput out;
  uint32_t pairs[kStep / 2], largest = 0;
  std::memcpy(pairs, x, sizeof pairs);
  for (int i = 0; i < kStep; ++i) out.value[i] = bf16_to_f32(x[i]);
  for (int j = 0; j < kStep / 2; ++j) {
    out.exponents[j] = pairs[j] & 0x7f807f80;
    largest = std::max(largest, std::max(out.exponents[j] >> 16, out.exponents[j] & 0xffff));
  }
  const uint32_t field = largest >> 7;
  out.floor = field > kLargestField ? ~0u : (std::max(field, kLowestField) + kMargin) << 23;
  return out;
}

void exact_step(const StepInput& x, const uint16_t* panel, uint32_t outputs, float* acc) {
  bf16_t a[kStep], b[kStep];
  for (int i = 0; i < kStep; ++i)
    a[i] = static_cast<bf16_t>(std::bit_cast<uint32_t>(x.value[i]) >> 16);
  for (int n = 0; n < kStep; ++n) {
    if (!(outputs >> n & 1)) continue;
    bool is_zero = true;
    for (int i = 0; i < kStep; ++i) {
      b[i] = panel[i / 2 * 32 + n * 2 + i % 2];
      // A zero factor with a finite one: nothing to add.
      const bool adds_zero = ((a[i] & 0x7fff) == 0 && (b[i] & 0x7fff) < 0x7f80) ||
                             ((b[i] & 0x7fff) == 0 && (a[i] & 0x7fff) < 0x7f80);
      is_zero = is_zero && adds_zero;
    }
    // An accumulator alone is its own sum (but for a zero's sign, and a NaN's payload, which are
    // not bits).
    if (!is_zero) acc[n] = hopper_step(acc[n], a, b);
  }
}

namespace {

constexpr int kBlockSteps = 32;  // steps whose inputs are expanded at a time
constexpr int kPanels = 4;       // panels that share that
constexpr int kMaxHeadDim = 576;

using Tile = float[kBlockRows][kStep];

using BlocksOf = cpu::BlockFunctions (*)(DType);

// Steps of a panel of bf16 as they lie or, from blocks, as `room` has them.
const bf16_t* steps_of(const Matrix& w, int64_t panel, int64_t step, int64_t steps,
                       cpu::ExpandPanel expand, bf16_t* room) {
  const char* data = static_cast<const char*>(w.data) + panel * w.unit_bytes();
  if (!expand) return reinterpret_cast<const bf16_t*>(data) + step * kStep * kStep;
  expand(data, data + w.scales_at(), step / 2, steps / 2, reinterpret_cast<char*>(room));
  return room;
}

// Calls use(first row, rows, first panel, panels, tiles) with dot(x[t], w[n]) for rows [0, rows)
// and panels [begin, end), some at a time. `copies` panels in a row hold the same outputs of
// `copies` interleaved matrices.
template <PanelFunction* panel_function, BlocksOf blocks_of, typename Use>
void for_dots(const Activation& x, int64_t rows, const Matrix& w, int copies, int64_t begin,
              int64_t end, int split_k, Use use) {
  CHECK(x.type == DType::bf16 && storage_of(w.type).element == DType::bf16,
        "the order hopper is defined for bf16");
  const cpu::ExpandPanel expand = blocks_of(w.type).expand;
  alignas(64) bf16_t room[kBlockSteps * kStep * kStep];
  const int64_t run_steps = round_up(w.k / split_k, kStep) / kStep;
  StepInput inputs[kBlockSteps][kBlockRows];
  alignas(64) Tile partial[8][kPanels];
  for (int64_t t0 = 0; t0 < rows; t0 += kBlockRows) {
    const int count = static_cast<int>(std::min<int64_t>(kBlockRows, rows - t0));
    for (int64_t p0 = begin; p0 < end; p0 += kPanels) {
      const int panels = static_cast<int>(std::min<int64_t>(kPanels, end - p0));
      std::memset(partial, 0, sizeof partial[0] * split_k);
      for (int64_t s0 = 0; s0 < split_k * run_steps;) {
        const int64_t run = s0 / run_steps;
        const int steps =
            static_cast<int>(std::min<int64_t>(kBlockSteps, (run + 1) * run_steps - s0));
        for (int s = 0; s < steps; ++s)
          for (int r = 0; r < count; ++r)
            inputs[s][r] = expand_input(static_cast<const bf16_t*>(x.data) + (t0 + r) * x.stride +
                                        (s0 + s) * kStep);
        for (int i = 0; i < panels; ++i) {
          const int64_t outputs = std::min<int64_t>(kStep, w.n - (p0 + i) / copies * kStep);
          const bf16_t* panel = steps_of(w, p0 + i, s0, steps, expand, room);
          panel_function(inputs[0], count, panel, steps, (1u << outputs) - 1, partial[run][i]);
        }
        s0 += steps;
      }
      float* sums = &partial[0][0][0][0];
      constexpr int kTileGroup = sizeof partial[0] / sizeof(float);
      for (int left = split_k; left > 1; left /= 2)
        for (int r = 0; r < left / 2; ++r)
          for (int i = 0; i < kTileGroup; ++i)
            sums[r * kTileGroup + i] =
                sums[2 * r * kTileGroup + i] + sums[(2 * r + 1) * kTileGroup + i];
      for (int i = 0; i < kTileGroup; ++i) sums[i] = sums[i] + 0.0f;
      use(t0, count, p0, panels, partial[0]);
    }
  }
}

template <PanelFunction* panel_function, BlocksOf blocks_of>
void matmul(const MatmulParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.w.panels());
  for_dots<panel_function, blocks_of>(
      p.x, p.rows, p.w, 1, begin, end, p.split_k,
      [&](int64_t t0, int rows, int64_t p0, int panels, const Tile* tiles) {
        for (int r = 0; r < rows; ++r)
          for (int i = 0; i < panels; ++i) {
            const int64_t n0 = (p0 + i) * kStep;
            float* out = p.y + (t0 + r) * p.y_stride + n0;
            for (int64_t n = 0; n < std::min<int64_t>(kStep, p.w.n - n0); ++n) {
              float y = tiles[i][r][n];
              if (p.bias) y = y + p.bias[n0 + n];
              out[n] = p.accumulate ? out[n] + y : y;
            }
          }
      });
}

template <PanelFunction* panel_function, BlocksOf blocks_of>
void gated_matmul(const GatedMatmulParams& p, const Execution& on) {
  const int64_t width = p.gate_up.n;
  bf16_t* out = static_cast<bf16_t*>(p.out.data);
  const auto [begin, end] = on.share.of(p.gate_up.panels());
  for_dots<panel_function, blocks_of>(
      p.x, p.rows, p.gate_up, 2, 2 * begin, 2 * end, 1,
      [&](int64_t t0, int rows, int64_t p0, int panels, const Tile* tiles) {
        for (int r = 0; r < rows; ++r)
          for (int i = 0; i < panels; i += 2)
            for (int n = 0; n < kStep; ++n) {
              const int64_t f = (p0 + i) / 2 * kStep + n;
              float g = tiles[i][r][n], u = tiles[i + 1][r][n];
              if (p.gate_bias && f < width) g = g + p.gate_bias[f];
              if (p.up_bias && f < width) u = u + p.up_bias[f];
              out[(t0 + r) * p.out.stride + f] =
                  f < width ? f32_to_bf16(math::gated(p.curve, g, u)) : bf16_t{0};
            }
      });
  // Pad columns past the last panel.
  const int64_t padded = p.gate_up.panels() * kStep;
  if (on.share.index == 0)
    for (int64_t t = 0; t < p.rows; ++t)
      std::fill(out + t * p.out.stride + padded, out + t * p.out.stride + round_up(width, kLeafPad),
                bf16_t{0});
}

// ---- Attention, numerics 4

// Up to kBlockRows query heads that share a key/value head and a block table.
struct Queries {
  int count = 0;
  int64_t row[kBlockRows];
  int head[kBlockRows];
  int64_t first[kBlockRows], last[kBlockRows];  // valid slots
};

struct State {
  float max[kBlockRows], sum[kBlockRows];
  bool is_set[kBlockRows] = {};
  float out[kBlockRows][kMaxHeadDim];
};

// p[i] = exp2(fma(d[i], c, -m)) as math::exp2 computes it, written so that the compiler can use
// vectors.
void exponentials(const float* d, float c, float m, float* p, int count) {
  for (int i = 0; i < count; ++i) {
    const float t = __builtin_fmaf(d[i], c, -m);
    float inside = t < -126.0f ? -126.0f : t;
    inside = inside >= 128.0f ? 0.0f : inside;
    const float n = (inside + math::constants::kRound) - math::constants::kRound;
    float y = math::exp2_of_parts(n, inside - n);
    y = t < -126.0f ? 0.0f : y;
    p[i] = t >= 128.0f ? std::numeric_limits<float>::infinity() : y;
  }
}

float sum64_of_split(const float* p) {
  float lane[64];
  for (int i = 0; i < 64; ++i) lane[i] = (0.0f + p[i]) + p[i + 64];
  for (int half = 32; half >= 1; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = lane[i] + lane[i + half];
  return lane[0];
}

// Adds the split of slots that begins at `base` to the state of every query with a valid slot in
// it.
template <PanelFunction* panel_function>
void attend_split(const AttentionParams& p, const Queries& q,
                  const StepInput (*q_inputs)[kBlockRows], int group, int64_t base,
                  ScoreScale scale, State& state) {
  const float c = scale.factor;
  const KvLayer& kv = p.kv;
  const int32_t* table = p.tables[p.table_of[q.row[0]]];
  const int64_t begin = std::max(base, *std::min_element(q.first, q.first + q.count));
  const int64_t end = std::min(base + kSplitSlots, *std::max_element(q.last, q.last + q.count) + 1);
  const auto block = [&](int64_t slot) { return table[slot / kv.block_size]; };
  const auto mask_of = [](int64_t from, int64_t to) {  // bits [from, to) of 16
    return (1u << std::clamp<int64_t>(to, 0, 16)) - (1u << std::clamp<int64_t>(from, 0, 16));
  };

  alignas(64) Tile d[kSplitSlots / kStep] = {};
  const int q_steps = static_cast<int>(round_up(kv.head_dim, kStep) / kStep);
  for (int64_t j = begin / kStep * kStep; j < end; j += kStep)
    panel_function(q_inputs[0], q.count,
                   kv.keys + kv.key_index(block(j), group, j % kv.block_size, 0), q_steps,
                   mask_of(begin - j, end - j), d[(j - base) / kStep]);

  StepInput weights[kSplitSlots / kStep][kBlockRows];
  float max[kBlockRows], sum[kBlockRows];
  for (int r = 0; r < q.count; ++r) {
    float scores[kSplitSlots], probabilities[kSplitSlots] = {};
    bf16_t rounded[kSplitSlots];
    const int64_t from = std::max(q.first[r], base) - base;
    const int64_t to = std::min(q.last[r] + 1, base + kSplitSlots) - base;
    for (int j = 0; j < kSplitSlots; ++j) scores[j] = d[j / kStep][r][j % kStep] + 0.0f;
    if (scale.inner > 0)
      for (int64_t j = from; j < to; ++j) scores[j] = math::half_tanh(scores[j] * scale.inner);
    float largest = -std::numeric_limits<float>::infinity();
    for (int64_t j = from; j < to; ++j) largest = std::max(largest, scores[j]);
    max[r] = largest * c;
    if (from < to)
      exponentials(scores + from, c, max[r], probabilities + from, static_cast<int>(to - from));
    sum[r] = sum64_of_split(probabilities);
    for (int j = 0; j < kSplitSlots; ++j) rounded[j] = f32_to_bf16(probabilities[j]);
    for (int s = 0; s < kSplitSlots / kStep; ++s) weights[s][r] = expand_input(rounded + s * kStep);
  }

  float a[kBlockRows], b[kBlockRows];
  bool has_slot[kBlockRows];
  for (int r = 0; r < q.count; ++r) {
    has_slot[r] = q.first[r] < base + kSplitSlots && q.last[r] >= base;
    if (!has_slot[r]) continue;
    if (!state.is_set[r]) {
      state.max[r] = max[r];
      state.sum[r] = sum[r];
      continue;
    }
    const float largest = std::max(state.max[r], max[r]);
    a[r] = math::exp2(state.max[r] - largest);
    b[r] = math::exp2(max[r] - largest);
    state.max[r] = largest;
    state.sum[r] = __builtin_fmaf(state.sum[r], a[r], sum[r] * b[r]);
  }
  for (int64_t e = 0; e < kv.head_dim; e += kStep) {
    const uint32_t outputs = mask_of(0, kv.head_dim - e);
    alignas(64) Tile o = {};
    for (int64_t j = begin / 32 * 32; j < end; j += 32)
      panel_function(weights[(j - base) / kStep], q.count,
                     kv.values + kv.value_index(block(j), group, j % kv.block_size, e), 2, outputs,
                     o);
    const int width = static_cast<int>(std::min<int64_t>(kStep, kv.head_dim - e));
    for (int r = 0; r < q.count; ++r) {
      float* out = state.out[r] + e;
      for (int i = 0; has_slot[r] && i < width; ++i) {
        const float y = o[r][i] + 0.0f;
        out[i] = state.is_set[r] ? __builtin_fmaf(out[i], a[r], y * b[r]) : y;
      }
    }
  }
  for (int r = 0; r < q.count; ++r) state.is_set[r] = state.is_set[r] || has_slot[r];
}

// One more split, whose sum is 1 and whose values are 0.
void merge_sink(State& state, int r, float sink, int head_dim) {
  const float m = sink * math::constants::kLog2eHigh, largest = std::max(state.max[r], m);
  const float a = math::exp2(state.max[r] - largest), b = math::exp2(m - largest);
  state.max[r] = largest;
  state.sum[r] = __builtin_fmaf(state.sum[r], a, b);
  for (int e = 0; e < head_dim; ++e) state.out[r][e] = __builtin_fmaf(state.out[r][e], a, 0.0f);
}

template <PanelFunction* panel_function>
void attend(const PartialAttentionParams& partial, const Queries& q, int group) {
  const AttentionParams& p = partial.of;
  const int head_dim = p.kv.head_dim;
  const ScoreScale scale = score_scale(p);
  StepInput q_inputs[kMaxHeadDim / kStep][kBlockRows];
  for (int r = 0; r < q.count; ++r)
    for (int s = 0; s * kStep < head_dim; ++s)
      q_inputs[s][r] =
          expand_input(p.q + (q.row[r] * p.heads + q.head[r]) * round_up(head_dim, 32) + s * kStep);
  State state;
  const int64_t first = *std::min_element(q.first, q.first + q.count);
  const int64_t last = *std::max_element(q.last, q.last + q.count);
  for (int64_t base = first / kSplitSlots * kSplitSlots; base <= last; base += kSplitSlots)
    attend_split<panel_function>(p, q, q_inputs, group, base, scale, state);
  for (int r = 0; r < q.count && p.sinks; ++r) merge_sink(state, r, p.sinks[q.head[r]], head_dim);
  for (int r = 0; r < q.count; ++r) {
    bf16_t* out = static_cast<bf16_t*>(p.out.data) + q.row[r] * p.out.stride + q.head[r] * head_dim;
    for (int e = 0; e < head_dim; ++e) out[e] = f32_to_bf16(state.out[r][e] / state.sum[r]);
    if (partial.max) partial.max[q.row[r] * p.heads + q.head[r]] = state.max[r];
    if (partial.sum) partial.sum[q.row[r] * p.heads + q.head[r]] = state.sum[r];
  }
}

template <PanelFunction* panel_function>
void partial_attention(const PartialAttentionParams& partial, const Execution& on) {
  const AttentionParams& p = partial.of;
  CHECK(p.out.type == DType::bf16, "the order hopper is defined for bf16");
  CHECK(p.kv.head_dim <= kMaxHeadDim, "head size beyond what the kernel holds");
  const int per_group = p.heads / p.kv.kv_heads;
  const int64_t width = int64_t{p.heads} * p.kv.head_dim;
  // A unit of work: one key/value head and as many rows as fill a block.
  const int64_t unit_rows = std::max(1, kBlockRows / per_group);
  const int64_t row_units = (p.rows + unit_rows - 1) / unit_rows;
  const auto [begin, end] = on.share.of(row_units * p.kv.kv_heads);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t t0 = unit / p.kv.kv_heads * unit_rows, t1 = std::min(t0 + unit_rows, p.rows);
    const int group = static_cast<int>(unit % p.kv.kv_heads);
    Queries q;
    for (int64_t t = t0; t < t1; ++t)
      for (int h = 0; h < per_group; ++h) {
        if (q.count == kBlockRows || (q.count && p.table_of[q.row[0]] != p.table_of[t])) {
          attend<panel_function>(partial, q, group);
          q.count = 0;
        }
        const int64_t last = p.positions[t];
        q.row[q.count] = t;
        q.head[q.count] = group * per_group + h;
        q.last[q.count] = last;
        q.first[q.count++] = first_slot(partial, t);
      }
    attend<panel_function>(partial, q, group);
    if (group == 0)  // pad columns
      for (int64_t t = t0; t < t1; ++t) {
        bf16_t* out = static_cast<bf16_t*>(p.out.data) + t * p.out.stride;
        std::fill(out + width, out + round_up(width, kLeafPad), bf16_t{0});
      }
  }
}

template <PanelFunction* panel_function>
void attention(const AttentionParams& p, const Execution& on) {
  partial_attention<panel_function>({p}, on);
}

template <PanelFunction* panel_function, BlocksOf blocks_of>
void override_with(Kernels& kernels) {
  kernels.matmul = matmul<panel_function, blocks_of>;
  kernels.gated_matmul = gated_matmul<panel_function, blocks_of>;
  kernels.attention = attention<panel_function>;
  kernels.partial_attention = partial_attention<panel_function>;
}

}  // namespace

void override_avx2(Kernels& kernels) {
  override_with<&panel_avx2, cpu::blocks_avx2>(kernels);
}
void override_avx512(Kernels& kernels) {
  override_with<&panel_avx512, cpu::best_blocks_avx512>(kernels);
}

}  // namespace invar::hopper
