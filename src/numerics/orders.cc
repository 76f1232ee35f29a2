#include "numerics/orders.h"

#include <algorithm>

#include "base/check.h"
#include "numerics/hopper_step.h"
#include "numerics/math.h"

namespace invar {

std::string_view name_of(Order order) {
  if (order == Order::pair) return "pair";
  return order == Order::portable ? "portable" : "hopper";
}

namespace orders {

namespace {

// Copies up to `size` elements of src[0, left) into dst as f32 and fills the rest with zeros.
template <typename T>
void load_leaf(const T* src, int64_t left, int size, float* dst) {
  for (int i = 0; i < size; ++i) {
    if constexpr (std::is_same_v<T, bf16_t>)
      dst[i] = i < left ? bf16_to_f32(src[i]) : 0.0f;
    else
      dst[i] = i < left ? src[i] : 0.0f;
  }
}

template <typename T>
float portable_chain(const T* x, const T* w, int64_t k, float acc = 0.0f) {
  float xs[32], ws[32];
  for (int64_t i = 0; i < k; i += 32) {
    load_leaf(x + i, k - i, 32, xs);
    load_leaf(w + i, k - i, 32, ws);
    acc = acc + portable_leaf(xs, ws);
  }
  return acc;
}

float hopper_chain(const bf16_t* x, const bf16_t* w, int64_t k, float acc = 0.0f) {
  bf16_t xs[16], ws[16];
  for (int64_t i = 0; i < k; i += 16) {
    for (int j = 0; j < 16; ++j) {
      xs[j] = i + j < k ? x[i + j] : 0;
      ws[j] = i + j < k ? w[i + j] : 0;
    }
    acc = hopper_step(acc, xs, ws);
  }
  return acc;
}

float pair_chain(const bf16_t* x, const bf16_t* w, int64_t k, float acc = 0.0f) {
  float xs[2], ws[2];
  for (int64_t i = 0; i < k; i += 2) {
    load_leaf(x + i, k - i, 2, xs);
    load_leaf(w + i, k - i, 2, ws);
    acc = pair_step(acc, xs, ws);
  }
  return acc;
}

float chain(Order order, const bf16_t* x, const bf16_t* w, int64_t k, float acc = 0.0f) {
  if (order == Order::pair) return pair_chain(x, w, k, acc);
  return order == Order::portable ? portable_chain(x, w, k, acc) : hopper_chain(x, w, k, acc);
}

}  // namespace

float portable_leaf(const float* x, const float* w) {
  float even = 0.0f, odd = 0.0f;
  for (int j = 0; j < 16; ++j) {
    even = __builtin_fmaf(x[2 * j], w[2 * j], even);
    odd = __builtin_fmaf(x[2 * j + 1], w[2 * j + 1], odd);
  }
  return even + odd;
}

float extend_chain(Order order, const bf16_t* x, const bf16_t* w, int64_t k, float acc) {
  return chain(order, x, w, k, acc);
}

void dot_runs(Order order, const bf16_t* x, const bf16_t* w, int64_t k, int runs, float* partial) {
  CHECK(runs == 1 || k % (runs * leaf_size(order)) == 0, "a run must hold whole leaves");
  const int64_t length = k / runs;
  for (int r = 0; r < runs; ++r) partial[r] = chain(order, x + r * length, w + r * length, length);
}

float tree_sum(float* s, int count) {
  for (; count > 1; count /= 2)
    for (int i = 0; i < count / 2; ++i) s[i] = s[2 * i] + s[2 * i + 1];
  return s[0];
}

float dot(Order order, const bf16_t* x, const bf16_t* w, int64_t k, int runs) {
  float partial[8];
  dot_runs(order, x, w, k, runs, partial);
  return tree_sum(partial, runs) + 0.0f;
}

float dot(const float* x, const float* w, int64_t k, int runs) {
  CHECK(runs == 1 || k % (runs * 32) == 0, "a run must hold whole leaves");
  float partial[8];
  const int64_t length = k / runs;
  for (int r = 0; r < runs; ++r)
    partial[r] = portable_chain(x + r * length, w + r * length, length);
  return tree_sum(partial, runs) + 0.0f;
}

int row_parallel_runs(int64_t k, int64_t must_divide) {
  for (int runs = 8; runs > 1; runs /= 2)
    if (must_divide % runs == 0 && k % (32 * runs) == 0) return runs;
  return 1;
}

float halve64(float* lane) {
  for (int half = 32; half >= 1; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = lane[i] + lane[i + half];
  return lane[0];
}

float sum64(std::span<const float> x) {
  float lane[64] = {};
  for (size_t i = 0; i < x.size(); ++i) lane[i % 64] = lane[i % 64] + x[i];
  return halve64(lane);
}

float sum64_squares(std::span<const float> x) {
  float lane[64] = {};
  for (size_t i = 0; i < x.size(); ++i) lane[i % 64] = __builtin_fmaf(x[i], x[i], lane[i % 64]);
  return halve64(lane);
}

LogSumExp log_sum_exp(std::span<const float> logits) {
  const int64_t v = static_cast<int64_t>(logits.size());
  const float max = *std::max_element(logits.begin(), logits.end());
  const int64_t segment = 64 * ((v + 511) / 512);
  float partial[8];
  for (int s = 0; s < 8; ++s) {
    float lane[64] = {};
    const int64_t begin = std::min(v, s * segment), end = std::min(v, begin + segment);
    for (int64_t i = begin; i < end; ++i) {
      float& sum = lane[(i - begin) % 64];
      sum = sum + math::exp(logits[i] - max);
    }
    partial[s] = halve64(lane);
  }
  return {max, math::log(tree_sum(partial, 8))};
}

}  // namespace orders
}  // namespace invar
