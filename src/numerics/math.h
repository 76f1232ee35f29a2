// Invar's own elementary functions (numerics 0, 5 and 6): fixed sequences of IEEE operations, the
// same on every instruction set and on CUDA. libm is never called on a value that can reach a
// logit, a draw or a weight. The f32 functions expect flush-to-zero mode (ScopedFlushToZero); the
// f64 ones never meet a subnormal.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace invar::math {

namespace constants {
// 2^f on [-1/2, 1/2], highest power first; the constant term is 1.
inline constexpr float kExp2[6] = {0x1.470b4ap-13f, 0x1.5f7276p-10f, 0x1.3b270ep-7f,
                                   0x1.c6ae72p-5f,  0x1.ebfbe2p-3f,  0x1.62e432p-1f};
// Adding and subtracting this rounds a float of magnitude below 2^22 to the nearest integer.
inline constexpr float kRound = 0x1.8p23f;
// log2(e) in two parts.
inline constexpr float kLog2eHigh = 0x1.715476p+0f, kLog2eLow = 0x1.4ae0cp-26f;
}  // namespace constants

// The end of exp2 and exp: 2^(n + f) for an integer n and f in about [-1/2, 1/2].
inline float exp2_of_parts(float n, float f) {
  float p = constants::kExp2[0];
  for (int i = 1; i < 6; ++i) p = __builtin_fmaf(p, f, constants::kExp2[i]);
  p = __builtin_fmaf(p, f, 1.0f);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) +
                              (static_cast<uint32_t>(static_cast<int32_t>(n)) << 23));
}

// 2^t; +0 below -126, +inf from 128. Largest error 1.02 ulp.
inline float exp2(float t) {
  if (t < -126.0f) return 0.0f;
  if (t >= 128.0f) return std::numeric_limits<float>::infinity();
  const float n = (t + constants::kRound) - constants::kRound;
  return exp2_of_parts(n, t - n);
}

// e^x, with the ends of exp2 at t = x * log2(e).
inline float exp(float x) {
  const float t = x * constants::kLog2eHigh;
  if (t < -126.0f) return 0.0f;
  if (t >= 128.0f) return std::numeric_limits<float>::infinity();
  const float n = (t + constants::kRound) - constants::kRound;
  float f = __builtin_fmaf(x, constants::kLog2eHigh, -n);
  f = __builtin_fmaf(x, constants::kLog2eLow, f);
  return exp2_of_parts(n, f);
}

// Natural logarithm of a positive normal number; log(0) = -inf. Within 2 ulp.
double log(double x);
// The f64 sequence, rounded once.
inline float log(float x) {
  return static_cast<float>(log(static_cast<double>(x)));
}

// 2^t for |t| < 1000, in f64.
double exp2(double t);

// x^y for x > 0, as exp2(y * log2(x)): for frequencies, not for hot loops.
double pow(double x, double y);

// Sine and cosine of an angle of magnitude below 2^30, in f64.
struct SinCos {
  double sin, cos;
};
SinCos sincos(double angle);

// Square root, correctly rounded (the IEEE operation).
inline float sqrt(float x) {
  return __builtin_sqrtf(x);
}

}  // namespace invar::math
