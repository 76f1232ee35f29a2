#include "numerics/math.h"

namespace invar::math {

namespace {

inline double fma(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}

constexpr double kRound = 0x1.8p52;
constexpr double kLog2e = 0x1.71547652b82fep+0;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kHalfPi[3] = {0x1.921fb544p+0, 0x1.0b4611a6p-34, 0x1.3198a2e037073p-69};

// ln(2)^k / k!, k = 0..14.
constexpr double kExp2[15] = {0x1.0p+0,
                              0x1.62e42fefa39efp-1,
                              0x1.ebfbdff82c58fp-3,
                              0x1.c6b08d704a0c0p-5,
                              0x1.3b2ab6fba4e77p-7,
                              0x1.5d87fe78a6731p-10,
                              0x1.430912f86c787p-13,
                              0x1.ffcbfc588b0c7p-17,
                              0x1.62c0223a5c824p-20,
                              0x1.b5253d395e7c4p-24,
                              0x1.e4cf5158b8ecap-28,
                              0x1.e8cac7351bb25p-32,
                              0x1.c3bd650fc2986p-36,
                              0x1.816193166d0f9p-40,
                              0x1.314964d5878a9p-44};
// 1/k!: sine from k = 3 to 17 by twos, cosine from k = 2 to 18 by twos.
constexpr double kSin[8] = {0x1.5555555555555p-3,  0x1.1111111111111p-7,  0x1.a01a01a01a01ap-13,
                            0x1.71de3a556c734p-19, 0x1.ae64567f544e4p-26, 0x1.6124613a86d09p-33,
                            0x1.ae7f3e733b81fp-41, 0x1.952c77030ad4ap-49};
constexpr double kCos[9] = {0x1.0p-1,
                            0x1.5555555555555p-5,
                            0x1.6c16c16c16c17p-10,
                            0x1.a01a01a01a01ap-16,
                            0x1.27e4fb7789f5cp-22,
                            0x1.1eed8eff8d898p-29,
                            0x1.93974a8c07c9dp-37,
                            0x1.ae7f3e733b81fp-45,
                            0x1.6827863b97d97p-53};

}  // namespace

double exp2(double t) {
  const double n = (t + kRound) - kRound, f = t - n;
  double p = kExp2[14];
  for (int i = 13; i >= 0; --i) p = fma(p, f, kExp2[i]);
  return std::bit_cast<double>(std::bit_cast<uint64_t>(p) +
                               (static_cast<uint64_t>(static_cast<int64_t>(n)) << 52));
}

double pow(double x, double y) {
  return exp2(y * (log(x) * kLog2e));
}

SinCos sincos(double angle) {
  const double n = (angle * kTwoOverPi + kRound) - kRound;
  double r = fma(-n, kHalfPi[0], angle);
  r = fma(-n, kHalfPi[1], r);
  r = fma(-n, kHalfPi[2], r);
  const double z = -(r * r);  // alternating signs come from the argument
  double s = kSin[7], c = kCos[8];
  for (int i = 6; i >= 0; --i) s = fma(s, z, kSin[i]);
  for (int i = 7; i >= 0; --i) c = fma(c, z, kCos[i]);
  s = fma(r * z, s, r);
  c = fma(z, c, 1.0);
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

}  // namespace invar::math
