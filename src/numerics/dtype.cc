#include "numerics/dtype.h"

namespace invar {

uint16_t f32_to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent < -25) return sign;
  // The significand in units of the result's last place, with the bits below it as a remainder.
  const uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
  const int drop = exponent >= -14 ? 13 : 13 + (-14 - exponent);
  uint32_t rounded = significand >> drop;
  const uint32_t rest = significand & ((1u << drop) - 1), half = 1u << (drop - 1);
  if (rest > half || (rest == half && (rounded & 1))) ++rounded;
  if (exponent >= -14) rounded += static_cast<uint32_t>(exponent + 14) << 10;
  return static_cast<uint16_t>(sign | rounded);
}

}  // namespace invar
