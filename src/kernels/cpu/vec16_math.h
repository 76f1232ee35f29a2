// Elementary functions of numerics/math.h and roundings of numerics/dtype.h over Vec16, the same
// bits. Included inside an anonymous namespace after one of the vec16 headers.

inline Vec16 exp2_of_parts(Vec16 n, Vec16 f) {
  Vec16 p = splat(0x1.470b4ap-13f);
  p = fma(p, f, splat(0x1.5f7276p-10f));
  p = fma(p, f, splat(0x1.3b270ep-7f));
  p = fma(p, f, splat(0x1.c6ae72p-5f));
  p = fma(p, f, splat(0x1.ebfbe2p-3f));
  p = fma(p, f, splat(0x1.62e432p-1f));
  p = fma(p, f, splat(1.0f));
  return value_of(bits_of(p) + (to_integer(n) << 23));
}

// The ends of exp2 and exp: +0 for t below -126, infinity from 128 on.
inline Vec16 with_ends(Vec16 t, Vec16 y) {
  y = select(is_less(t, splat(-126.0f)), splat(0.0f), y);
  // t >= 128, as t > the number before 128; a NaN stays one.
  return select(is_less(splat(0x1.fffffep+6f), t), value_of(splat_bits(0x7f800000)), y);
}

inline Vec16 round_to_integer(Vec16 t) {
  const Vec16 round = splat(0x1.8p23f);
  return (t + round) - round;
}

inline Vec16 exp2(Vec16 t) {
  const Vec16 n = round_to_integer(t);
  return with_ends(t, exp2_of_parts(n, t - n));
}

inline Vec16 exp(Vec16 x) {
  const Vec16 high = splat(0x1.715476p+0f), low = splat(0x1.4ae0cp-26f);
  const Vec16 t = x * high, n = round_to_integer(t);
  return with_ends(t, exp2_of_parts(n, fma(x, low, fms(x, high, n))));
}

// f32_to_bf16, in the lower half of each lane.
inline Bits16 to_bf16(Vec16 x) {
  const Bits16 bits = bits_of(x), magnitude = bits & splat_bits(0x7fffffff);
  Bits16 y = (bits + splat_bits(0x7fff) + ((bits >> 16) & splat_bits(1))) >> 16;
  y = select(is_greater_signed(splat_bits(0x00800000), magnitude),
             (bits >> 16) & splat_bits(0x8000), y);
  return select(is_greater_signed(magnitude, splat_bits(0x7f800000)), splat_bits(0x7fff), y);
}

// f32_to_cached_bf16.
inline Bits16 to_cached_bf16(Vec16 x) {
  const Bits16 y = to_bf16(x), magnitude = y & splat_bits(0x7fff);
  const Bits16 finite = (y & splat_bits(0x8000)) | min_signed(magnitude, splat_bits(0x7f7f));
  return select(is_greater_signed(magnitude, splat_bits(0x7f80)), splat_bits(0), finite);
}

// The end of sum64: lanes 0..15 of `lane[0]`, 16..31 of `lane[1]` and so on.
inline float halve64(const Vec16* lane) {
  return halve((lane[0] + lane[2]) + (lane[1] + lane[3]));
}
