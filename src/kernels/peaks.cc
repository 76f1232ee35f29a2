#include "kernels/peaks.h"

#include <immintrin.h>

#include <algorithm>

#include "base/timer.h"
#include "kernels/cpu/peak.h"

namespace invar {

namespace {

constexpr int kRuns = 5;

// Reads 32 bytes of every line, from several streams at once and ahead of itself: what a core needs
// to keep as many lines in flight as it can.
void read_lines(const std::byte* begin, int64_t bytes) {
  constexpr int64_t kStreams = 4, kLine = 64, kAhead = 4096;
  const int64_t length = bytes / kStreams / kLine * kLine;
  __m256i sum = _mm256_setzero_si256();
  for (int64_t at = 0; at < length; at += kLine)
    for (int64_t s = 0; s < kStreams; ++s) {
      const std::byte* line = begin + s * length + at;
      _mm_prefetch(reinterpret_cast<const char*>(line + kAhead), _MM_HINT_T0);
      sum = _mm256_xor_si256(sum, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line)));
    }
  __asm__ volatile("" : : "x"(sum));  // the sum is used
}

// Shortest of several runs of `work` on the pool.
double best_seconds(ThreadPool& pool, FunctionRef<void(Part)> work) {
  double best = 1e30;
  for (int i = 0; i < kRuns; ++i) {
    const Timer timer;
    pool.run(work);
    best = std::min(best, timer.seconds());
  }
  return best;
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool, std::span<const std::byte> memory) {
  return measure_read_bandwidth(pool, std::vector{memory});
}

double measure_read_bandwidth(ThreadPool& pool,
                              const std::vector<std::span<const std::byte>>& arrays) {
  const double seconds = best_seconds(pool, [&](Part part) {
    for (const auto& array : arrays) {
      const auto [begin, end] = part.of(static_cast<int64_t>(array.size()), 4096);
      read_lines(array.data() + begin, end - begin);
    }
  });
  size_t total = 0;
  for (const auto& array : arrays) total += array.size();
  return static_cast<double>(total) / seconds;
}

double measure_product_peak(ThreadPool& pool, std::string_view instruction_set) {
  int64_t (*peak)(int64_t) = instruction_set == "avx2"     ? cpu::peak_avx2
                             : instruction_set == "avx512" ? cpu::peak_avx512
                             : instruction_set == "amx"    ? cpu::peak_amx
                                                           : nullptr;
  if (!peak) return 0;
  const int64_t rounds = instruction_set == "amx" ? 200'000 : 2'000'000;  // some milliseconds
  const double operations = static_cast<double>(peak(rounds) * rounds * pool.size());
  return operations / best_seconds(pool, [&](Part) { peak(rounds); });
}

}  // namespace invar
