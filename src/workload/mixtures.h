// Contexts of sequences that decode together, for benchmarks: people's are not equal.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace invar {

struct Mixture {
  const char* name;
  std::vector<int64_t> lengths;

  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  int64_t longest() const { return *std::ranges::max_element(lengths); }
};

// Lengths in these proportions, of `mean` tokens in the mean and one at least.
inline Mixture make_mixture(const char* name, const std::vector<double>& shares, int64_t mean) {
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0),
               per_share = static_cast<double>(mean * std::ssize(shares)) / all;
  Mixture mixture{name, {}};
  for (const double share : shares)
    mixture.lengths.push_back(std::max<int64_t>(1, std::llround(share * per_share)));
  return mixture;
}

inline Mixture even_mixture(int64_t sequences, int64_t mean) {
  return {"even", std::vector<int64_t>(static_cast<size_t>(sequences), mean)};
}

inline std::vector<Mixture> ragged_mixtures(int64_t sequences, int64_t mean) {
  const size_t n = static_cast<size_t>(sequences);
  std::vector<double> one(n, 1), quarter(n, 1), eighth(n, 1), uniform(n), exponential(n);
  one[n / 2] = std::max(1.0, static_cast<double>(n) - 1);
  uint32_t random = 2024;
  for (size_t i = 0; i < n; ++i) {
    random = random * 1664525u + 1013904223u;
    const double u = (random >> 8) * 0x1p-24;
    uniform[i] = 0.02 + u;
    exponential[i] = 0.02 - std::log(1 - u);
    if (i % 4 == 3) quarter[i] = 8;
    if (i % 8 == 5) eighth[i] = 12 + 4 * u;
  }
  return {make_mixture("one has half", one, mean),
          make_mixture("a quarter have 8 x", quarter, mean),
          make_mixture("an eighth have 12 to 16 x", eighth, mean),
          make_mixture("uniform", uniform, mean), make_mixture("exponential", exponential, mean)};
}

}  // namespace invar
