// Elementary functions of numerics/math.h and roundings of numerics/dtype.h over Vec16, the same
// bits. Included after one of the vec16 headers.
#pragma once

namespace invar::cpu {

namespace {

// 2^f on [-1/2, 1/2].
inline Vec16 exp2_polynomial(Vec16 f) {
  Vec16 p = splat(0x1.470b4ap-13f);
  p = fma(p, f, splat(0x1.5f7276p-10f));
  p = fma(p, f, splat(0x1.3b270ep-7f));
  p = fma(p, f, splat(0x1.c6ae72p-5f));
  p = fma(p, f, splat(0x1.ebfbe2p-3f));
  p = fma(p, f, splat(0x1.62e432p-1f));
  return fma(p, f, splat(1.0f));
}

// p * 2^n by its bits, with the ends of exp2 and exp: +0 for t below -126, infinity from 128 on.
template <typename Vector>
inline Vector scale_with_ends(Vector t, Vector n, Vector p) {
  Vector y = value_of(bits_of(p) + (to_integer(n) << 23));
  y = select(is_less(t, splat(-126.0f)), splat(0.0f), y);
  // t >= 128, as t > the number before 128; a NaN stays one.
  return select(is_less(splat(0x1.fffffep+6f), t), value_of(splat_bits(0x7f800000)), y);
}

// The same for exp2, where p >= 1 whenever t >= -126 and n = -126, so that the result is no
// subnormal. A set may know a shorter way: then its header has this name, as no template.
template <typename Vector>
inline Vector exp2_end(Vector t, Vector n, Vector p) {
  return scale_with_ends(t, n, p);
}

inline Vec16 round_to_integer(Vec16 t) {
  const Vec16 round = splat(0x1.8p23f);
  return (t + round) - round;
}

// t without the nearest integer, which becomes n; where |t| is below 2^22. A set may have an
// instruction for it: then its header has this name, as no template.
template <typename Vector>
inline Vector without_integer(Vector t, Vector& n) {
  n = round_to_integer(t);
  return t - n;
}

inline Vec16 exp2(Vec16 t) {
  Vec16 n;
  const Vec16 f = without_integer(t, n);
  return exp2_end(t, n, exp2_polynomial(f));
}

inline Vec16 exp(Vec16 x) {
  const Vec16 high = splat(0x1.715476p+0f), low = splat(0x1.4ae0cp-26f);
  const Vec16 t = x * high, n = round_to_integer(t);
  return scale_with_ends(t, n, exp2_polynomial(fma(x, low, fms(x, high, n))));
}

inline Vec16 negated(Vec16 x) {
  return value_of(bits_of(x) + splat_bits(0x80000000));
}

// numerics/curves.h.
inline Vec16 gelu_exponent(Vec16 x) {
  return x * fma(x * x, splat(0x1.2444f2p-4f), splat(0x1.988454p+0f));
}

inline Vec16 gelu_exponent_slope(Vec16 x) {
  return fma(x * x, splat(0x1.2444f2p-4f * 3.0f), splat(0x1.988454p+0f));
}

// A NaN stays one.
inline Vec16 clamped(Vec16 gate, Vec16 up) {
  const Vec16 one = splat(1.0f), bound = splat(7.0f);
  const Vec16 g = min(bound, gate), u = max(negated(bound), min(bound, up));
  return (u + one) * (g / (one + exp(negated(g * splat(0x1.b3b646p+0f)))));
}

inline Vec16 half_tanh(Vec16 x) {
  return splat(1.0f) - splat(2.0f) / (splat(1.0f) + exp(x));
}

inline Vec16 gelu(Vec16 x) {
  const Vec16 one = splat(1.0f),
              s = value_of(bits_of(x) & splat_bits(0x7fffffff)) * splat(0x1.6a09e6p-1f);
  const Vec16 t = one / fma(splat(0x1.4f740ap-2f), s, one);
  Vec16 p = splat(0x1.0fb844p+0f);
  p = fma(p, t, splat(-0x1.7401c6p+0f));
  p = fma(p, t, splat(0x1.6be1c6p+0f));
  p = fma(p, t, splat(-0x1.23531cp-2f));
  p = fma(p, t, splat(0x1.04f20cp-2f));
  const Vec16 tail = ((p * t) * exp(negated(s * s))) * splat(0.5f);
  return x * select(is_less(x, splat(0.0f)), tail, one - tail);
}

// f32_to_bf16, in the lower half of each lane. A set may have an instruction for it: then it has
// this name before, as no template.
template <typename Vector>
inline Bits16 to_bf16(Vector x) {
  const Bits16 bits = bits_of(x), magnitude = bits & splat_bits(0x7fffffff);
  Bits16 y = (bits + splat_bits(0x7fff) + ((bits >> 16) & splat_bits(1))) >> 16;
  y = select(is_greater_signed(splat_bits(0x00800000), magnitude),
             (bits >> 16) & splat_bits(0x8000), y);
  return select(is_greater_signed(magnitude, splat_bits(0x7f800000)), splat_bits(0x7fff), y);
}

// All lanes, or the first `count`, rounded so.
template <typename Vector>
inline void store_bf16(uint16_t* p, Vector x) {
  store_u16(p, to_bf16(x));
}
template <typename Vector>
inline void store_bf16(uint16_t* p, Vector x, int64_t count) {
  store_u16(p, to_bf16(x), count);
}

// bf16(x) in f32, of numbers that are 0 or have magnitudes within 2^-110 .. 2^110. (Where x has its
// first 8 bits before the point, less is 2^16 x - x rounded to an integer, ties to even since 2^16
// x is even in a tie; 2^16 x less that is x rounded.)
template <typename Vector>
inline Vector to_8_bits(Vector x) {
  const Vector less = x * splat(0xffff);
  return fms(x, splat(0x1p16f), less);
}
// As bf16, a's and then b's, next to each other. A set may have an instruction for it.
template <typename Vector>
inline Bits16 bf16_pairs(Vector a, Vector b) {
  return upper_words(bits_of(to_8_bits(a)), bits_of(to_8_bits(b)));
}

// f32_to_cached_bf16.
inline Bits16 to_cached_bf16(Vec16 x) {
  const Bits16 y = to_bf16(x), magnitude = y & splat_bits(0x7fff);
  const Bits16 finite = (y & splat_bits(0x8000)) | min_signed(magnitude, splat_bits(0x7f7f));
  return select(is_greater_signed(magnitude, splat_bits(0x7f80)), splat_bits(0), finite);
}

// The end of sum64: lanes 0..15 of `lane[0]`, 16..31 of `lane[1]` and so on. First what halve
// halves.
inline Vec16 join64(const Vec16* lane) {
  return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}
inline float halve64(const Vec16* lane) {
  return halve(join64(lane));
}

// Whether all have magnitudes within 2^-32 .. 2^32.
inline bool are_ordinary(const float* x, int count) {
  Bits16 least = splat_bits(0x7fffffff), most = splat_bits(0);
  for (int i = 0; i < count; i += 16) {
    const Bits16 magnitude = bits_of(load(x + i)) & splat_bits(0x7fffffff);
    least = min_signed(least, magnitude);
    most = max_signed(most, magnitude);
  }
  const Bits16 low = splat_bits(0x2f800000), high = splat_bits(0x4f800000);
  return (to_word(is_greater_signed(low, least)) | to_word(is_greater_signed(most, high))) == 0;
}

// x[i] / divisor in place, for whole vectors; by fma, at twice the speed, where nothing on the way
// can be subnormal. With r the rounded reciprocal x * r is off by less than two places, and one
// correction leaves less than one: from there a second one, whose remainder is exact, gives the
// nearest number, as division does (Markstein).
inline void divide(float* x, int count, float divisor) {
  const Vec16 d = splat(divisor);
  if (!(0.5f <= divisor && divisor < 0x1p32f) || !are_ordinary(x, count)) {
    for (int i = 0; i < count; i += 16) store(x + i, load(x + i) / d);
    return;
  }
  const Vec16 r = splat(1.0f) / d, minus_d = negated(d);
  for (int i = 0; i < count; i += 16) {
    const Vec16 v = load(x + i);
    Vec16 q = v * r;
    q = fma(fma(q, minus_d, v), r, q);
    q = fma(fma(q, minus_d, v), r, q);
    store(x + i, q);
  }
}

}  // namespace

}  // namespace invar::cpu
