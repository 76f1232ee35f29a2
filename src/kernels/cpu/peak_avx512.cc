#include <immintrin.h>

#include "kernels/cpu/peak.h"

namespace invar::cpu {

int64_t peak_avx512(int64_t rounds) {
  constexpr int kChains = 12;  // latency times ports, with some to spare
  __m512 chain[kChains];
  for (__m512& c : chain) c = _mm512_set1_ps(1.0f);
  const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
  for (int64_t i = 0; i < rounds; ++i)
    for (__m512& c : chain) __asm__ volatile("vfmadd231ps %1, %2, %0" : "+v"(c) : "v"(a), "v"(b));
  return kChains * 16 * 2;
}

}  // namespace invar::cpu
