// The vector functions of one instruction set as functions of arrays of 16 numbers, for
// vector_math_test.cc.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"

namespace invar::cpu {

void exp2_avx512(const float* x, float* y) {
  store(y, exp2(load(x)));
}
void exp_avx512(const float* x, float* y) {
  store(y, exp(load(x)));
}
void divide_avx512(float* x, int count, float divisor) {
  divide(x, count, divisor);
}
void to_8_bits_avx512(const float* x, float* y) {
  store(y, to_8_bits(load(x)));
}

}  // namespace invar::cpu
