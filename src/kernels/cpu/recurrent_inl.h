// Rows of recurrent layers (numerics 4.4) over Vec16. Included after a vec16 header and
// vec16_math.h.
#pragma once

#include "kernels/cpu/recurrent_functions.h"

namespace invar::cpu {

namespace {

constexpr int kChunk = 64;

inline const float* f32(const void* p) {
  return static_cast<const float*>(p);
}
inline const uint16_t* words(const void* p) {
  return static_cast<const uint16_t*>(p);
}
inline float* f32(void* p) {
  return static_cast<float*>(p);
}
inline uint16_t* words(void* p) {
  return static_cast<uint16_t*>(p);
}

// The first `count` of 16 elements, bf16 or f32; bf16 are read by the element where they are few.
inline Vec16 load_as(const void* p, bool is_bf16, int64_t i, int64_t count) {
  if (!is_bf16) return load(f32(p) + i, count);
  if (count >= 16) return value_of(load_u16(words(p) + i) << 16);
  alignas(32) uint16_t some[16] = {};
  for (int64_t k = 0; k < count; ++k) some[k] = words(p)[i + k];
  return value_of(load_u16(some) << 16);
}
inline void store_as(void* p, bool is_bf16, int64_t i, Vec16 y, int64_t count) {
  if (is_bf16)
    store_bf16(words(p) + i, y, count);
  else
    store(f32(p) + i, y, count);
}

// f32_to_cached_f32.
inline Vec16 to_cached_f32(Vec16 x) {
  const Vec16 largest = splat(0x1.fffffep127f), least = splat(-0x1.fffffep127f);
  Vec16 y = select(is_less(largest, x), largest, x);
  y = select(is_less(x, least), least, y);
  return select(is_equal(x, x), y, splat(0.0f));
}
// keep(x) as f32.
inline Vec16 kept(Vec16 x, bool is_bf16) {
  return is_bf16 ? value_of(to_cached_bf16(x) << 16) : to_cached_f32(x);
}
inline void store_kept(void* p, bool is_bf16, int64_t i, Vec16 y, int64_t count) {
  if (is_bf16)
    store_u16(words(p) + i, to_cached_bf16(y), count);
  else
    store(f32(p) + i, to_cached_f32(y), count);
}

// Magnitudes seen; whether all were finite.
struct Seen {
  Bits16 most = splat_bits(0);
  void see(Vec16 x) { most = max_signed(most, bits_of(x) & splat_bits(0x7fffffff)); }
  bool is_finite() const { return to_word(is_greater_signed(most, splat_bits(0x7f7fffff))) == 0; }
};
inline Vec16 only(Vec16 x, int64_t count) {
  return count >= 16 ? x : select(lanes(0, static_cast<int>(count)), x, splat(0.0f));
}

// numerics/math.h.
inline Vec16 softplus(Vec16 x) {
  const Vec16 z = exp(value_of(bits_of(x) | splat_bits(0x80000000)));
  const Vec16 s = z / (z + splat(2.0f)), w = s * s;
  Vec16 p = splat(0x1.111112p-3f);
  p = fma(p, w, splat(0x1.3b13b2p-3f));
  p = fma(p, w, splat(0x1.745d18p-3f));
  p = fma(p, w, splat(0x1.c71c72p-3f));
  p = fma(p, w, splat(0x1.24924ap-2f));
  p = fma(p, w, splat(0x1.99999ap-2f));
  p = fma(p, w, splat(0x1.555556p-1f));
  p = fma(p, w, splat(2.0f));
  return fma(s, p, select(is_less(splat(0.0f), x), x, splat(0.0f)));
}

inline Vec16 logistic_of(Vec16 x) {
  return splat(1.0f) / (splat(1.0f) + exp(negated(x)));
}
inline Vec16 silu_of(Vec16 x) {
  return x / (splat(1.0f) + exp(negated(x)));
}

bool keep(const float* x, const float* factor, int64_t count, void* out, bool is_bf16) {
  Seen seen;
  for (int64_t i = 0; i < count; i += 16) {
    Vec16 v = load(x + i, count - i);
    if (factor) v = v * load(factor + i, count - i);
    seen.see(only(v, count - i));
    store_kept(out, is_bf16, i, v, count - i);
  }
  return seen.is_finite();
}

void convolve(const ConvRow& row, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    const int64_t left = count - i;
    Vec16 y = splat(0.0f);
    for (int j = 0; j < row.taps; ++j) {
      const Vec16 x = row.inputs[j] ? load_as(row.inputs[j], row.is_bf16, i, left) : splat(0.0f);
      y = fma(load(row.weight + j * row.weight_stride + i, left), x, y);
    }
    if (row.bias) y = y + load(row.bias + i, left);
    if (row.silu) y = silu_of(y);
    if (row.gate) y = y * load(row.gate + i, left);
    store_as(row.out, row.out_is_bf16, i, y, left);
  }
}

void steps(const float* a, const float* bias, int64_t count, float least, float most, float* out) {
  for (int64_t i = 0; i < count; i += 16) {
    Vec16 y = softplus(load(a + i, count - i) + load(bias + i, count - i));
    y = select(is_less(y, splat(least)), splat(least), y);
    store(out + i, select(is_less(splat(most), y), splat(most), y), count - i);
  }
}

void logistic(const float* z, int64_t count, bool doubles, float* out) {
  for (int64_t i = 0; i < count; i += 16) {
    const Vec16 y = logistic_of(load(z + i, count - i));
    store(out + i, doubles ? y + y : y, count - i);
  }
}

void multiply(const float* x, const float* rates, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += 16)
    store(out + i, load(x + i, count - i) * load(rates + i, count - i), count - i);
}

// sum64 of squares of x, or of x * gate's f.
template <typename At>
inline float squares(int64_t width, At at) {
  Vec16 lane[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  for (int64_t i = 0, k = 0; i < width; i += 16, ++k) {
    const Vec16 v = at(i, width - i);  // zero in missing lanes, which never are -0
    lane[k % 4] = fma(v, v, lane[k % 4]);
  }
  return halve64(lane);
}
inline float inverse_root(float x) {
  return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
}

bool key_head(const KeyHead& head) {
  const float* x = head.x;
  const auto at = [&](int64_t i, int64_t left) { return load(x + i, left); };
  const Vec16 rs = splat(head.normalises ? inverse_root(squares(head.size, at) + head.eps) : 0.0f);
  Seen seen;
  for (int64_t i = 0; i < head.padded; i += 16) {
    const int64_t left = head.size - i;
    Vec16 y = splat(0.0f);
    if (left > 0) {
      y = load(x + i, left);
      if (head.normalises) y = (y * rs) * splat(head.scale);
      y = only(y, left);
    }
    seen.see(y);
    if (head.keeps)
      store_kept(head.out, head.is_bf16, i, y, 16);
    else
      store_as(head.out, head.is_bf16, i, y, 16);
  }
  return seen.is_finite();
}

void gated_norm(const GatedGroup& g) {
  const auto factor = [&](int64_t i, int64_t left) {
    const Vec16 z = load(g.gate + i, left);
    return g.is_sigmoid ? logistic_of(z) : silu_of(z);
  };
  const bool first = g.gate && g.gate_first;
  const auto at = [&](int64_t i, int64_t left) {
    const Vec16 x = load(g.x + i, left);
    return first ? only(x * factor(i, left), left) : x;
  };
  const Vec16 rs = splat(
      g.weight ? inverse_root(squares(g.width, at) / static_cast<float>(g.width) + g.eps) : 0.0f);
  for (int64_t i = 0; i < g.width; i += 16) {
    const int64_t left = g.width - i;
    Vec16 y = at(i, left);
    if (g.weight) y = (y * rs) * load(g.weight + i, left);
    if (g.gate && !first) y = y * factor(i, left);
    store_as(g.out, g.is_bf16, i, y, left);
  }
}

void decays(const float* a, const float* b, int64_t count, float* y) {
  for (int64_t i = 0; i < count; i += 16) {
    Vec16 t = load(a + i, count - i);
    if (b) t = t - load(b + i, count - i);
    store(y + i, exp(t), count - i);
  }
}

void decayed(const void* x, const float* y, int64_t count, bool is_bf16, void* out) {
  for (int64_t i = 0; i < count; i += 16)
    store_as(out, is_bf16, i, load_as(x, is_bf16, i, count - i) * load(y + i, count - i),
             count - i);
}

void weigh(const WeightRow& row) {
  const Vec16 sum = splat(row.sum);
  for (int s = 0; s < kChunk; s += 16) {
    Vec16 w = splat(0.0f);
    if (s < row.count) {
      w = row.scores ? exp(sum - load(row.sums + s)) * load(row.scores + s) : load(row.weights + s);
      w = only(w, row.count - s);
    }
    store(row.weights + s, w);
    store_as(row.operand, row.is_bf16, s, s < row.rounded ? only(w, row.rounded - s) : splat(0.0f),
             16);
  }
}

float channel_dot(const float* x, const float* y, const float* k, int64_t count) {
  Vec16 lane[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  for (int64_t i = 0, j = 0; i < count; i += 16, ++j) {
    const int64_t left = count - i;
    const Vec16 sum = fma(load(x + i, left) * load(y + i, left), load(k + i, left), lane[j % 4]);
    lane[j % 4] = left < 16 ? select(lanes(0, static_cast<int>(left)), sum, lane[j % 4]) : sum;
  }
  return halve64(lane);
}

bool value(const ValueRow& row) {
  const Vec16 decay = splat(-row.decay), factor = splat(row.factor);
  Seen seen;
  float* own = const_cast<float*>(row.values) + row.count * row.stride;
  for (int64_t e = 0; e < row.size; e += 16) {
    const int64_t left = row.size - e;
    Vec16 r = load(row.v + e, left);
    if (row.is_delta) r = fma(decay, row.of_state ? load(row.of_state + e, left) : splat(0.0f), r);
    if (row.of_others) r = r - load(row.of_others + e, left);
    const float* values = row.values + e;
    for (int s = 0; s < row.count; ++s, values += row.stride)
      r = fma(splat(-row.weights[s]), load(values), r);
    r = only(factor * r, left);
    seen.see(r);
    store(own + e, kept(r, row.is_bf16));
  }
  return seen.is_finite();
}

// Where 16 elements of a slot stand in a packed matrix of 64 inner elements: words of pairs, or
// f32.
inline int64_t place_of(int64_t e, int slot, bool is_bf16) {
  return is_bf16 ? e / 16 * (kChunk * 16) + slot / 2 * 32 : e / 16 * (kChunk * 16) + slot * 16;
}

void leave(const float* kept, int64_t size, int slot, bool is_bf16, void* values) {
  const uint32_t mine = slot % 2 ? 0xffff0000 : 0xffff;
  for (int64_t e = 0; e < size; e += 16) {
    const Vec16 v = load(kept + e);
    const int64_t at = place_of(e, slot, is_bf16);
    if (!is_bf16) {
      store(f32(values) + at, v, size - e);
      continue;
    }
    const Bits16 before = load_bits(words(values) + at);
    const Bits16 half = slot % 2 ? bits_of(v) : bits_of(v) >> 16;
    const Bits16 now = (before & splat_bits(~mine)) | (half & splat_bits(mine));
    store_bits(words(values) + at,
               size - e >= 16 ? now : select(lanes(0, static_cast<int>(size - e)), now, before));
  }
}

void take(const void* values, int64_t size, int slot, bool is_bf16, float* kept) {
  for (int64_t e = 0; e < size; e += 16) {
    const int64_t at = place_of(e, slot, is_bf16);
    Vec16 v;
    if (is_bf16) {
      const Bits16 pairs = load_bits(words(values) + at);
      v = value_of(slot % 2 ? pairs & splat_bits(0xffff0000) : pairs << 16);
    } else {
      v = load(f32(values) + at);
    }
    store(kept + e, only(v, size - e));
  }
}

void output(const float* of_state, float decay, const float* of_values, const float* skip,
            const float* v, int64_t size, float* out) {
  for (int64_t e = 0; e < size; e += 16) {
    const int64_t left = size - e;
    const Vec16 y = of_state ? load(of_state + e, left) : splat(0.0f);
    Vec16 o = fma(splat(decay), y, load(of_values + e, left));
    if (skip) o = fma(splat(*skip), load(v + e, left), o);
    store(out + e, o, left);
  }
}

void decayed_keys(const void* keys, const float* decays, int64_t decay_stride, int64_t size,
                  bool is_bf16, bool packs, void* out, int64_t out_stride) {
  for (int64_t d = 0; d < size; d += is_bf16 ? 2 : 1) {
    const float* decay = decays + d * decay_stride;
    if (!is_bf16) {
      store(f32(out) + (packs ? d * 16 : d * out_stride), load(f32(keys) + d * 16) * load(decay));
      continue;
    }
    const Bits16 pairs = load_bits(words(keys) + d * 16);
    const bool has_odd = d + 1 < size;
    const Bits16 even = to_bf16(value_of(pairs << 16) * load(decay));
    const Bits16 odd =
        has_odd ? to_bf16(value_of(pairs & splat_bits(0xffff0000)) * load(decay + decay_stride))
                : splat_bits(0);
    if (packs) {
      store_bits(words(out) + d * 16, even | (odd << 16));
    } else {
      store_u16(words(out) + d * out_stride, even);
      if (has_odd) store_u16(words(out) + (d + 1) * out_stride, odd);
    }
  }
}

void step_state(const StateStep& step) {
  const int64_t padded = (step.key_size + 31) / 32 * 32;
  for (int64_t e = 0; e < step.value_size; e += 16) {
    const int64_t left = step.value_size - e, panel = e * padded;
    for (int64_t d = 0; d < padded; d += 2) {
      Vec16 next[2] = {splat(0.0f), splat(0.0f)};
      for (int k = 0; k < 2; ++k) {
        const int64_t at = panel + (d + k) * 16;
        if (d + k < step.key_size) {
          const Vec16 before = step.state ? load(step.state + at) : splat(0.0f);
          next[k] = only(fma(splat(step.decays[d + k]), before,
                             load(step.dots + (d + k) * step.dots_stride + e, left)),
                         left);
        }
        store(step.next + at, next[k]);
      }
      if (step.operand)
        store_bits(step.operand + panel + d * 16, to_bf16(next[0]) | (to_bf16(next[1]) << 16));
    }
  }
}

}  // namespace

}  // namespace invar::cpu
