// Latent attention in float64 as it is published: every head has keys and values of its own, made
// of the latents.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace invar {

struct LatentF64 {
  using Rows = std::vector<std::vector<double>>;

  int64_t heads, rank, rope, nope, value;
  double scale;  // of scores
  // The pair i and the row t stand at [i * stride + t].
  const std::vector<double>&cos, &sin;
  int64_t stride;
  const double *key_up, *value_up;  // of each head [rank][nope], [value][rank]

  // The input of the output product, of queries that stay still and that turn, latents behind their
  // norm and what turns beside them.
  Rows attend(const Rows& still, Rows turning, const Rows& latents, Rows beside) const;

 private:
  Rows keys_of(int64_t head, const Rows& latents) const;
  Rows values_of(int64_t head, const Rows& latents) const;
  void turn(Rows& rows, int64_t first) const;
};

// Elements from the matrix of one head to that of the next.
inline int64_t latent_step_f64(int64_t rows, int64_t columns) {
  return (rows * columns + 15) / 16 * 16;
}

inline LatentF64::Rows LatentF64::keys_of(int64_t head, const Rows& latents) const {
  const double* w = key_up + head * latent_step_f64(rank, nope);
  Rows keys(latents.size(), std::vector<double>(static_cast<size_t>(nope)));
  for (size_t t = 0; t < latents.size(); ++t)
    for (int64_t l = 0; l < rank; ++l)
      for (int64_t s = 0; s < nope; ++s) keys[t][s] += w[l * nope + s] * latents[t][l];
  return keys;
}

inline LatentF64::Rows LatentF64::values_of(int64_t head, const Rows& latents) const {
  const double* w = value_up + head * latent_step_f64(value, rank);
  Rows values(latents.size(), std::vector<double>(static_cast<size_t>(value)));
  for (size_t t = 0; t < latents.size(); ++t)
    for (int64_t v = 0; v < value; ++v)
      for (int64_t l = 0; l < rank; ++l) values[t][v] += w[v * rank + l] * latents[t][l];
  return values;
}

// Elements i and i + rope / 2 of those from `first` on.
inline void LatentF64::turn(Rows& rows, int64_t first) const {
  for (size_t t = 0; t < rows.size(); ++t)
    for (int64_t i = 0; i < rope / 2; ++i) {
      double &a = rows[t][first + i], &b = rows[t][first + i + rope / 2];
      const size_t place = static_cast<size_t>(i * stride) + t;
      const double x = a * cos[place] - b * sin[place];
      b = b * cos[place] + a * sin[place];
      a = x;
    }
}

inline LatentF64::Rows LatentF64::attend(const Rows& still, Rows turning, const Rows& latents,
                                         Rows beside) const {
  Rows out(still.size(), std::vector<double>(static_cast<size_t>(heads * value)));
  turn(beside, 0);
  for (int64_t head = 0; head < heads; ++head) {
    const Rows keys = keys_of(head, latents), values = values_of(head, latents);
    turn(turning, head * rope);
    for (size_t t = 0; t < still.size(); ++t) {
      std::vector<double> p(t + 1);
      double sum = 0;
      for (size_t j = 0; j <= t; ++j) {
        double score = 0;
        for (int64_t s = 0; s < nope; ++s) score += still[t][head * nope + s] * keys[j][s];
        for (int64_t r = 0; r < rope; ++r) score += turning[t][head * rope + r] * beside[j][r];
        sum += p[j] = std::exp(score * scale);
      }
      for (size_t j = 0; j <= t; ++j)
        for (int64_t v = 0; v < value; ++v) out[t][head * value + v] += p[j] / sum * values[j][v];
    }
  }
  return out;
}

}  // namespace invar
