// Invar's own elementary functions (numerics 0, 5 and 6): fixed sequences of IEEE operations, the
// same on every instruction set and on CUDA. libm is never called on a value that can reach a
// logit, a draw or a weight. The f32 functions expect flush-to-zero mode (ScopedFlushToZero); the
// f64 ones never meet a subnormal. The functions that kernels use are constexpr, which is how CUDA
// code calls them too (--expt-relaxed-constexpr).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace invar::math {

namespace constants {
// 2^f on [-1/2, 1/2], highest power first; the constant term is 1.
inline constexpr std::array<float, 6> kExp2 = {0x1.470b4ap-13f, 0x1.5f7276p-10f, 0x1.3b270ep-7f,
                                               0x1.c6ae72p-5f,  0x1.ebfbe2p-3f,  0x1.62e432p-1f};
// Adding and subtracting this rounds a float of magnitude below 2^22 to the nearest integer.
inline constexpr float kRound = 0x1.8p23f;
// log2(e) in two parts.
inline constexpr float kLog2eHigh = 0x1.715476p+0f, kLog2eLow = 0x1.4ae0cp-26f;
// 2 / (2k + 1), k = 7..0: log(1 + z) = s (c_7 + ...) with s = z / (z + 2) for z in [0, 1].
inline constexpr std::array<float, 8> kSoftplus = {
    0x1.111112p-3f, 0x1.3b13b2p-3f, 0x1.745d18p-3f, 0x1.c71c72p-3f,
    0x1.24924ap-2f, 0x1.99999ap-2f, 0x1.555556p-1f, 2.0f};
// ln(2) in two parts, f64.
inline constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
// 2 / (2k + 1), k = 1..11: atanh's series.
inline constexpr std::array<double, 11> kAtanh = {
    0x1.5555555555555p-1, 0x1.999999999999ap-2, 0x1.2492492492492p-2, 0x1.c71c71c71c71cp-3,
    0x1.745d1745d1746p-3, 0x1.3b13b13b13b14p-3, 0x1.1111111111111p-3, 0x1.e1e1e1e1e1e1ep-4,
    0x1.af286bca1af28p-4, 0x1.8618618618618p-4, 0x1.642c8590b2164p-4};
}  // namespace constants

// The end of exp2 and exp: 2^(n + f) for an integer n and f in about [-1/2, 1/2].
constexpr float exp2_of_parts(float n, float f) {
  constexpr auto kCoefficients = constants::kExp2;  // a copy: CUDA has no host arrays
  float p = kCoefficients[0];
  for (int i = 1; i < 6; ++i) p = __builtin_fmaf(p, f, kCoefficients[i]);
  p = __builtin_fmaf(p, f, 1.0f);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) +
                              (static_cast<uint32_t>(static_cast<int32_t>(n)) << 23));
}

// 2^t; +0 below -126, +inf from 128. Largest error 1.02 ulp.
constexpr float exp2(float t) {
  if (t < -126.0f) return 0.0f;
  if (t >= 128.0f) return std::numeric_limits<float>::infinity();
  const float n = (t + constants::kRound) - constants::kRound;
  return exp2_of_parts(n, t - n);
}

// e^x, with the ends of exp2 at t = x * log2(e).
constexpr float exp(float x) {
  const float t = x * constants::kLog2eHigh;
  if (t < -126.0f) return 0.0f;
  if (t >= 128.0f) return std::numeric_limits<float>::infinity();
  const float n = (t + constants::kRound) - constants::kRound;
  float f = __builtin_fmaf(x, constants::kLog2eHigh, -n);
  f = __builtin_fmaf(x, constants::kLog2eLow, f);
  return exp2_of_parts(n, f);
}

// log(1 + e^x). Largest error 3.3 ulp.
constexpr float softplus(float x) {
  const float z = exp(x < 0.0f ? x : -x), s = z / (z + 2.0f), w = s * s;
  constexpr auto kCoefficients = constants::kSoftplus;
  float p = kCoefficients[0];
  for (int i = 1; i < 8; ++i) p = __builtin_fmaf(p, w, kCoefficients[i]);
  return __builtin_fmaf(s, p, x > 0.0f ? x : 0.0f);
}

// Natural logarithm of a positive normal number; log(0) = -inf. Within 2 ulp.
constexpr double log(double x) {
  if (x == 0.0) return -std::numeric_limits<double>::infinity();
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint64_t shifted = bits + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd);
  const double e = static_cast<double>(static_cast<int64_t>(shifted >> 52) - 1023);
  bits = (shifted & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd;
  const double m = std::bit_cast<double>(bits);
  // log(m) = 2 atanh(s), s = (m - 1) / (m + 1).
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  constexpr auto kCoefficients = constants::kAtanh;
  double p = kCoefficients[10];
  for (int i = 9; i >= 0; --i) p = __builtin_fma(p, z, kCoefficients[i]);
  const double tail = __builtin_fma(e, constants::kLn2Low, s * (z * p));
  return __builtin_fma(e, constants::kLn2High, __builtin_fma(2.0, s, tail));
}
// The f64 sequence, rounded once.
constexpr float log(float x) {
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
#ifdef __clang__  // knows no constexpr square root; nvcc needs one to call it on a device
inline
#else
constexpr
#endif
    float
    sqrt(float x) {
  return __builtin_sqrtf(x);
}

}  // namespace invar::math
