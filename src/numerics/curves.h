// The functions that stand between two matrix products (numerics 5.1), constexpr as those of
// math.h.
#pragma once

#include "numerics/math.h"

namespace invar {

// silu(x) = x / (1 + exp(-x)); gelu_tanh and gelu are the two forms of x * Phi(x); clamped is that
// of a gated pair within bounds (gpt_oss); relu_squared is x * x from 0 on and else +0 (Nemotron).
enum class Nonlinearity : uint8_t { silu, gelu_tanh, gelu, clamped, relu_squared };

namespace math {

namespace constants {
// 2 sqrt(2 / pi) and 0.044715 of it: gelu_tanh(x) is x times the logistic function of
// x * (kGeluLinear + kGeluCubic * x^2).
inline constexpr float kGeluLinear = 0x1.988454p+0f, kGeluCubic = 0x1.2444f2p-4f;
inline constexpr float kSqrtHalf = 0x1.6a09e6p-1f;
// erfc(s) = t (c_0 + t (c_1 + ...)) exp(-s^2), t = 1 / (1 + kErfc s): formula 7.1.26 of Abramowitz
// and Stegun, highest power first.
inline constexpr float kErfcStep = 0x1.4f740ap-2f;
inline constexpr std::array<float, 5> kErfc = {0x1.0fb844p+0f, -0x1.7401c6p+0f, 0x1.6be1c6p+0f,
                                               -0x1.23531cp-2f, 0x1.04f20cp-2f};
// The clamped pair: its bounds, and the factor of the logistic function's argument.
inline constexpr float kClamp = 7.0f, kClampedSlope = 0x1.b3b646p+0f;
}  // namespace constants

// The exponent of gelu_tanh in the place of silu's: gelu_tanh(x) = x / (1 +
// exp(-gelu_exponent(x))).
constexpr float gelu_exponent(float x) {
  return x * __builtin_fmaf(x * x, constants::kGeluCubic, constants::kGeluLinear);
}

constexpr float gelu_exponent_slope(float x) {
  return __builtin_fmaf(x * x, constants::kGeluCubic * 3.0f, constants::kGeluLinear);
}

constexpr float silu(float x) {
  return x / (1.0f + exp(-x));
}
constexpr float gelu_tanh(float x) {
  return x / (1.0f + exp(-gelu_exponent(x)));
}
constexpr float gelu(float x) {
  const float s = (x < 0.0f ? -x : x) * constants::kSqrtHalf;
  const float t = 1.0f / __builtin_fmaf(constants::kErfcStep, s, 1.0f);
  constexpr auto kCoefficients = constants::kErfc;
  float p = kCoefficients[0];
  for (int i = 1; i < 5; ++i) p = __builtin_fmaf(p, t, kCoefficients[i]);
  const float tail = ((p * t) * exp(-(s * s))) * 0.5f;  // of Phi, on the side of x
  return x * (x < 0.0f ? tail : 1.0f - tail);
}
constexpr float relu_squared(float x) {
  const float above = x < 0.0f ? 0.0f : x;
  return above * above;
}
constexpr float curve(Nonlinearity which, float x) {
  return which == Nonlinearity::silu           ? silu(x)
         : which == Nonlinearity::gelu_tanh    ? gelu_tanh(x)
         : which == Nonlinearity::relu_squared ? relu_squared(x)
                                               : gelu(x);
}

constexpr float clamped(float gate, float up) {
  using constants::kClamp;
  const float g = kClamp < gate ? kClamp : gate;
  const float below = kClamp < up ? kClamp : up, u = below < -kClamp ? -kClamp : below;
  return (u + 1.0f) * (g / (1.0f + exp(-(g * constants::kClampedSlope))));
}
// The value of a gated pair.
constexpr float gated(Nonlinearity which, float gate, float up) {
  return which == Nonlinearity::clamped ? clamped(gate, up) : curve(which, gate) * up;
}

// 1 - 2 / (1 + exp(x)) = tanh(x / 2): what caps scores and logits.
constexpr float half_tanh(float x) {
  return 1.0f - 2.0f / (1.0f + exp(x));
}

}  // namespace math

}  // namespace invar
