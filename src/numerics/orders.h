// The named orders of reduction, as executable scalar definitions (numerics 1 to 4). Everything
// fast is compared with these bit by bit. All of them expect flush-to-zero mode.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "numerics/dtype.h"

namespace invar {

// How the products of a matrix product are added (numerics 1).
enum class Order { portable, hopper, pair };

std::string_view name_of(Order order);
// Elements that one step of a chain consumes: 32 for portable, 16 for hopper, 2 for pair.
constexpr int leaf_size(Order order) {
  return order == Order::portable ? 32 : order == Order::hopper ? 16 : 2;
}

namespace orders {

// One leaf of `portable`: the even and the odd chain of 32 products, added.
float portable_leaf(const float* x, const float* w);

// One step of `pair`: the odd product, then the even one, each by fma.
inline float pair_step(float acc, const float* x, const float* w) {
  return __builtin_fmaf(x[0], w[0], __builtin_fmaf(x[1], w[1], acc));
}

// dot(x, w) over k elements, cut into `runs` equal chains that a binary tree adds (numerics 2),
// then + 0. Elements past k count as zero. `runs` is 1 or a power of two with leaf_size dividing k
// / runs.
float dot(Order order, const bf16_t* x, const bf16_t* w, int64_t k, int runs = 1);
// The same in f32; order `portable` only.
float dot(const float* x, const float* w, int64_t k, int runs = 1);

// One chain of a dot, gone on with from `acc` and without the final + 0: a sum over rows that
// arrive in several batches (numerics 9).
float extend_chain(Order order, const bf16_t* x, const bf16_t* w, int64_t k, float acc);

// The runs of one dot without the tree: partial[i] is the chain of run i, from +0.
void dot_runs(Order order, const bf16_t* x, const bf16_t* w, int64_t k, int runs, float* partial);
// (s0 + s1) + (s2 + s3) ...; `count` a power of two; overwrites s.
float tree_sum(float* s, int count);

// Runs of a row-parallel product with inner size k: the largest power of two <= 8 that divides
// `must_divide` (query heads for the attention output, 1 << 30 for the down product) and leaves 32
// | k / r; else 1.
int row_parallel_runs(int64_t k, int64_t must_divide);

// Lane sums of numerics 3: 64 lanes, each adds its elements ascending, then halves. `sum64` adds x,
// `sum64_squares` adds x * x by fma.
float sum64(std::span<const float> x);
float sum64_squares(std::span<const float> x);
// How both end: lane i += lane i + 32, 16, 8, 4, 2, 1. Overwrites the 64 lanes.
float halve64(float* lane);

// max + log(sum(exp(x - max))) over a vocabulary, without the final addition: numerics 3.
struct LogSumExp {
  float max;
  float log_sum;
  // log-probability of a token with logit x.
  float log_probability(float x) const { return (x - max) - log_sum; }
};
LogSumExp log_sum_exp(std::span<const float> logits);

}  // namespace orders
}  // namespace invar
