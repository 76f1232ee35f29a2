// Elementwise operations of numerics 3 and 5 over Vec16. Included after a vec16 header and
// vec16_math.h.
#pragma once

#include "kernels/cpu/row_functions.h"

namespace invar::cpu {

namespace {

// 1 / sqrt(sum64(x * x) / D + eps).
inline float inverse_rms(const float* x, int64_t width, float eps) {
  Vec16 lane[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  int64_t i = 0;
  for (; i + 64 <= width; i += 64)
    for (int k = 0; k < 4; ++k) {
      const Vec16 v = load(x + i + 16 * k);
      lane[k] = fma(v, v, lane[k]);
    }
  // Missing elements add 0 * 0 to a lane, which is never -0.
  for (int k = 0; i < width; i += 16, ++k) {
    const Vec16 v = load(x + i, width - i);
    lane[k] = fma(v, v, lane[k]);
  }
  const float mean = halve64(lane) / static_cast<float>(width) + eps;
  return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean)));
}

inline void rms_norm(const float* x, const float* weight, int64_t width, float eps, void* out,
                     bool is_bf16) {
  const Vec16 rs = splat(inverse_rms(x, width, eps));
  for (int64_t i = 0; i < width; i += 16) {
    const int64_t left = width - i;
    const Vec16 y = (load(x + i, left) * rs) * load(weight + i, left);
    if (is_bf16)
      store_bf16(static_cast<uint16_t*>(out) + i, y, left);
    else
      store(static_cast<float*>(out) + i, y, left);
  }
}

inline void store_as(void* out, bool is_bf16, int64_t i, Vec16 y, int64_t left) {
  if (is_bf16)
    store_bf16(static_cast<uint16_t*>(out) + i, y, left);
  else
    store(static_cast<float*>(out) + i, y, left);
}

// sum64 of what `value` makes of elements i .., of which there are so many.
template <typename Add>
inline float sum_lanes(int64_t width, Add add) {
  Vec16 lane[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  for (int64_t i = 0, k = 0; i < width; i += 16, ++k) lane[k % 4] = add(i, width - i, lane[k % 4]);
  return halve64(lane);
}

inline void layer_norm(const float* x, const float* weight, const float* bias, int64_t width,
                       float eps, void* out, bool is_bf16) {
  const float count = static_cast<float>(width);
  // Missing elements add +0 to a lane, which is never -0.
  const Vec16 mean = splat(sum_lanes(width, [&](int64_t i, int64_t left,
                                                Vec16 lane) { return lane + load(x + i, left); }) /
                           count);
  const Vec16 zero = splat(0.0f);
  const float squares = sum_lanes(width, [&](int64_t i, int64_t left, Vec16 lane) {
    const Vec16 d = load(x + i, left) - mean;
    const Vec16 real = left < 16 ? select(lanes(0, static_cast<int>(left)), d, zero) : d;
    return fma(real, real, lane);
  });
  const Vec16 rs = splat(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(squares / count + eps))));
  for (int64_t i = 0; i < width; i += 16) {
    const int64_t left = width - i;
    const Vec16 y = ((load(x + i, left) - mean) * rs) * load(weight + i, left);
    store_as(out, is_bf16, i, y + load(bias + i, left), left);
  }
}

inline void curve(int which, const float* x, int64_t width, void* out, bool is_bf16) {
  for (int64_t i = 0; i < width; i += 16) {
    const Vec16 v = load(x + i, width - i);
    const Vec16 z = which == 1 ? gelu_exponent(v) : v;
    const Vec16 above = max(splat(0.0f), v);  // v itself where that is NaN
    const Vec16 y = which == 2   ? gelu(v)
                    : which == 4 ? above * above
                                 : v / (splat(1.0f) + exp(negated(z)));
    store_as(out, is_bf16, i, y, width - i);
  }
}

inline void gate_pairs(int which, const float* dots, int64_t width, void* out, bool is_bf16) {
  for (int64_t i = 0; i < width; i += 16) {
    const Vec16 g = load(dots + 2 * i), u = load(dots + 2 * i + 16);
    const Vec16 z = which == 1 ? gelu_exponent(g) : g;
    const Vec16 y = which == 3 ? clamped(g, u) : (g / (splat(1.0f) + exp(negated(z)))) * u;
    store_as(out, is_bf16, i, y, width - i);
  }
}

inline void scale_logits(float* x, int64_t width, float divisor, float cap) {
  for (int64_t i = 0; i < width; i += 16) {
    Vec16 v = load(x + i, width - i);
    if (divisor != 1.0f) v = v / splat(divisor);
    if (cap > 0) v = splat(cap) * half_tanh((v + v) / splat(cap));
    store(x + i, v, width - i);
  }
}

inline void scale(float* x, int64_t width, float scale) {
  for (int64_t i = 0; i < width; i += 16)
    store(x + i, load(x + i, width - i) * splat(scale), width - i);
}

inline void add_scaled(const float* x, const float* bias, int64_t width, float scale, float* y) {
  for (int64_t i = 0; i < width; i += 16) {
    const int64_t left = width - i;
    Vec16 v = load(x + i, left);
    if (bias) v = v + load(bias + i, left);
    store(y + i, load(y + i, left) + v * splat(scale), left);
  }
}

// In the place of a number of lanes: all of them, which needs no mask.
struct AllLanes {};
inline Vec16 load(const float* p, AllLanes) {
  return load(p);
}
inline void store(float* p, Vec16 x, AllLanes) {
  store(p, x);
}
inline void store_bf16(uint16_t* p, Vec16 x, AllLanes) {
  store_bf16(p, x);
}

// Calls use(i, elements i.., elements i + E/2 .., how many) for the transformed head.
template <typename Use>
inline void transform_head(const HeadTransform& head, const float* in, Use use) {
  const int64_t half = head.size / 2;
  const Vec16 rs = splat(head.norm ? inverse_rms(in, head.size, head.eps) : 0.0f);
  const auto transform = [&](int64_t i, auto left) {
    Vec16 a = load(in + i, left), b = load(in + half + i, left);
    if (head.norm) {
      a = (a * rs) * load(head.norm + i, left);
      b = (b * rs) * load(head.norm + half + i, left);
    }
    const Vec16 c = load(head.cos + i, left), s = load(head.sin + i, left);
    use(i, fms(a, c, b * s), fma(b, c, a * s), left);
  };
  int64_t i = 0;
  for (; i + 16 <= half; i += 16) transform(i, AllLanes());
  if (i < half) transform(i, half - i);
}

inline void rotated_head(const HeadTransform& head, const float* in, float* out) {
  const int64_t half = head.size / 2;
  transform_head(head, in, [&](int64_t i, Vec16 a, Vec16 b, auto left) {
    store(out + i, a, left);
    store(out + half + i, b, left);
  });
}

inline void query(const HeadTransform& head, const float* in, uint16_t* out) {
  const int64_t half = head.size / 2;
  transform_head(head, in, [&](int64_t i, Vec16 a, Vec16 b, auto left) {
    store_bf16(out + i, a, left);
    store_bf16(out + half + i, b, left);
  });
}

inline bool key_value(const HeadTransform& head, const float* key, const float* value,
                      uint16_t* key_out, uint16_t* value_out) {
  Bits16 largest_magnitude = splat_bits(0);
  const auto see = [&](Vec16 x) {
    largest_magnitude = max_signed(largest_magnitude, bits_of(x) & splat_bits(0x7fffffff));
  };
  const auto any_above = [&](uint32_t bits) {
    return to_word(is_greater_signed(largest_magnitude, splat_bits(bits))) != 0;
  };
  alignas(64) float rotated[576 + 16];
  const int64_t half = head.size / 2;
  transform_head(head, key, [&](int64_t i, Vec16 a, Vec16 b, auto left) {
    see(a), see(b);
    store(rotated + i, a, left);
    store(rotated + half + i, b, left);
  });
  for (int64_t i = 0; i < head.size; i += 16) see(load(value + i, head.size - i));
  // Up to here rounding ends below infinity, and the cache holds plain bf16.
  const bool is_plain = !any_above(0x7f7f7fff);
  const auto round = [&](const float* x, uint16_t* out) {
    for (int64_t i = 0; i < head.size; i += 16) {
      const Vec16 v = load(x + i, head.size - i);
      if (is_plain)
        store_bf16(out + i, v, head.size - i);
      else
        store_u16(out + i, to_cached_bf16(v), head.size - i);
    }
  };
  round(rotated, key_out);
  round(value, value_out);
  return !any_above(0x7f7fffff);
}

inline Vec16 expert_output(const ExpertSum& s, int64_t place, int64_t i, int64_t left) {
  const char* row = static_cast<const char*>(s.y) + place * s.y_stride;
  if (s.is_bf16) return value_of(load_u16(reinterpret_cast<const uint16_t*>(row) + i) << 16);
  const Vec16 y = load(reinterpret_cast<const float*>(row) + i, left);
  return s.rounds ? value_of(to_bf16(y) << 16) : y;
}

inline void sum_experts(const ExpertSum& s, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 16) {
    const int64_t left = end - i;
    Vec16 sum = splat(0.0f);
    for (int32_t e = 0; e < s.chosen; ++e)
      sum = fma(splat(s.weights[e]), expert_output(s, s.place[e], i, left), sum);
    if (s.shared) sum = fma(splat(s.gate), load(s.shared + i, left), sum);
    store(s.hidden + i, load(s.hidden + i, left) + sum * splat(s.scale), left);
  }
}

// Index of the first element equal to `value`, which is there.
inline int32_t find(const float* x, int64_t count, float value) {
  for (int64_t i = 0;; i += 16) {
    const uint32_t hits = to_word(is_equal(load(x + i, count - i), splat(value))) &
                          to_word(lanes(0, static_cast<int>(count - i)));
    if (hits) return static_cast<int32_t>(i) + __builtin_ctz(hits);
  }
}

inline LogitsPass logits(const float* x, int64_t vocab, bool sums) {
  LogitsPass result = {};
  const Vec16 lowest = splat(-__builtin_inff());
  Vec16 top[4] = {lowest, lowest, lowest, lowest};
  uint32_t ordered = 0xffff;  // lanes that have seen no NaN
  int64_t i = 0;
  for (; i + 64 <= vocab; i += 64)
    for (int k = 0; k < 4; ++k) {
      const Vec16 v = load(x + i + 16 * k);
      ordered &= to_word(is_equal(v, v));
      top[k] = max(v, top[k]);
    }
  for (; i < vocab; i += 16) {
    const Vec16 v = load(x + i, vocab - i);
    ordered &= to_word(is_equal(v, v));
    top[0] = max(select(lanes(0, static_cast<int>(vocab - i)), v, lowest), top[0]);
  }
  result.has_nan = ordered != 0xffff;
  if (result.has_nan) return result;
  const float max_value = largest(max(max(top[0], top[1]), max(top[2], top[3])));
  result.argmax = find(x, vocab, max_value);
  if (!sums) return result;

  const Vec16 shift = splat(x[result.argmax]);
  const int64_t segment = 64 * ((vocab + 511) / 512);
  for (int s = 0; s < 8; ++s) {
    const int64_t begin = s * segment < vocab ? s * segment : vocab;
    const int64_t end = begin + segment < vocab ? begin + segment : vocab;
    Vec16 lane[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    int64_t j = begin;
    for (; j + 64 <= end; j += 64)
      for (int k = 0; k < 4; ++k) lane[k] = lane[k] + exp(load(x + j + 16 * k) - shift);
    for (int k = 0; j < end; j += 16, ++k) {
      // Missing elements add +0 to a lane, which is never -0.
      const Vec16 e = exp(load(x + j, end - j) - shift);
      lane[k] = lane[k] + select(lanes(0, static_cast<int>(end - j)), e, splat(0.0f));
    }
    result.segment_sums[s] = halve64(lane);
  }
  return result;
}

}  // namespace

}  // namespace invar::cpu
