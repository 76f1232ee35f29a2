#include <immintrin.h>

#include "kernels/cpu/peak.h"

namespace invar::cpu {

int64_t peak_avx2(int64_t rounds) {
  constexpr int kChains = 12;  // latency times ports, with some to spare
  __m256 chain[kChains];
  for (__m256& c : chain) c = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
  for (int64_t i = 0; i < rounds; ++i)
    for (__m256& c : chain) __asm__ volatile("vfmadd231ps %1, %2, %0" : "+x"(c) : "x"(a), "x"(b));
  return kChains * 8 * 2;
}

}  // namespace invar::cpu
