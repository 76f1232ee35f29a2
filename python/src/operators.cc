#include "operators.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "kernels/select.h"
#include "operator_checks.h"
#include "sampling/sampler.h"

namespace invar::python {

int64_t AttentionShape::rows() const {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

int32_t AttentionShape::longest() const {
  return *std::ranges::max_element(lengths);
}

Operators::Operators(const std::string& order, const std::string& instruction_set, int threads)
    : host_(make_host_device()),
      pool_(threads),
      kernels_(select_kernels(order_of(order), instruction_set)),
      training_(select_training_kernels(order_of(order), instruction_set)),
      execution_{.device = host_.get(), .pool = &pool_} {}

void Operators::for_pieces(int64_t count, FunctionRef<void(int64_t, int64_t)> work) {
  pool_.run([&](Part part) {
    const auto [begin, end] = part.of(count);
    work(begin, end);
  });
}

Activation Operators::rounded(const float* x, int64_t rows, int64_t width, int64_t padded,
                              DeviceArray<bf16_t>& memory) {
  const int64_t stride = activation_stride(width);
  memory = array<bf16_t>(padded * stride);
  const Activation out{memory.data(), DType::bf16, stride};
  run(kernels_.round,
      RoundParams{.x = x, .x_stride = width, .rows = rows, .width = width, .out = out});
  return out;
}

void Operators::widen(const Activation& x, int64_t rows, int64_t width, float* out) {
  for_pieces(rows, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < width; ++i)
        out[t * width + i] = bf16_to_f32(static_cast<const bf16_t*>(x.data)[t * x.stride + i]);
  });
}

std::vector<bf16_t> Operators::bf16_rows(const float* w, int64_t count) {
  std::vector<bf16_t> out(static_cast<size_t>(count));
  for_pieces(count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[static_cast<size_t>(i)] = f32_to_bf16(w[i]);
  });
  return out;
}

std::vector<float> Operators::rounded_vector(const float* x, int64_t count) {
  std::vector<float> out(x ? static_cast<size_t>(count) : 0);
  for (size_t i = 0; i < out.size(); ++i) out[i] = bf16_to_f32(f32_to_bf16(x[i]));
  return out;
}

// ---- Elementwise ----

void Operators::embedding(const int32_t* tokens, int64_t rows, const float* table, int64_t width,
                          float* out) {
  const std::lock_guard lock(mutex_);
  for_pieces(rows, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < width; ++i)
        out[t * width + i] = bf16_to_f32(f32_to_bf16(table[tokens[t] * width + i])) + 0.0f;
  });
}

void Operators::embedding_backward(const int32_t* tokens, int64_t rows, const float* dx,
                                   int64_t width, float* gradient) {
  const std::lock_guard lock(mutex_);
  run(training_.embed_gradient,
      EmbedGradientParams{
          .tokens = tokens, .dx = dx, .rows = rows, .width = width, .gradient = gradient});
}

void Operators::rms_norm(const float* x, const float* weight, float eps, int64_t rows,
                         int64_t width, bool rounds, float* out) {
  const std::lock_guard lock(mutex_);
  const std::vector<float> seen = rounded_vector(weight, width);
  run(kernels_.rms_norm, RmsNormParams{.x = x,
                                       .x_stride = width,
                                       .weight = seen.data(),
                                       .eps = eps,
                                       .rows = rows,
                                       .width = width,
                                       .out = {out, DType::f32, width},
                                       .keeps_pad = true});
  if (rounds) run(kernels_.round_in_place, RoundInPlaceParams{out, rows * width});
}

void Operators::rms_norm_backward(const float* dy, const float* x, const float* weight, float eps,
                                  int64_t rows, int64_t width, float* dx, float* gradient) {
  const std::lock_guard lock(mutex_);
  const std::vector<float> seen = rounded_vector(weight, width);
  const int64_t padded = round_up(rows, kLeafPad), count = rows * width;
  // Rows of zeros end the last leaf; their norm is finite.
  const auto all_dy = array<float>(padded * width), all_x = array<float>(padded * width),
             all_dx = array<float>(padded * width), rs = array<float>(padded);
  std::copy_n(dy, count, all_dy.data());
  std::copy_n(x, count, all_x.data());
  run(training_.norm_backward, NormBackwardParams{.dy = all_dy.data(),
                                                  .x = all_x.data(),
                                                  .weight = seen.data(),
                                                  .eps = eps,
                                                  .rows = padded,
                                                  .width = width,
                                                  .dx = all_dx.data(),
                                                  .rs = rs.data()});
  std::copy_n(all_dx.data(), count, dx);
  if (!gradient) return;
  run(training_.norm_gradient, NormGradientParams{.dy = all_dy.data(),
                                                  .dy_stride = width,
                                                  .x = all_x.data(),
                                                  .x_stride = width,
                                                  .rs = rs.data(),
                                                  .rs_stride = 1,
                                                  .rows = padded,
                                                  .heads = 1,
                                                  .width = width,
                                                  .gradient = gradient});
}

void Operators::rope(float* x, int64_t rows, int32_t heads, int32_t head_dim,
                     const int32_t* positions, const float* cos, const float* sin) {
  const std::lock_guard lock(mutex_);
  run(kernels_.rotate_heads, RotateHeadsParams{.x = x,
                                               .x_stride = int64_t{heads} * head_dim,
                                               .rows = rows,
                                               .heads = heads,
                                               .head_dim = head_dim,
                                               .positions = positions,
                                               .cos = cos,
                                               .sin = sin});
}

void Operators::gate(const float* g, const float* u, int64_t count, Nonlinearity curve,
                     float* out) {
  const std::lock_guard lock(mutex_);
  for_pieces(count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      out[i] = bf16_to_f32(f32_to_bf16(math::curve(curve, g[i]) * u[i]));
  });
}

void Operators::gate_backward(const float* d, const float* g, const float* u, int64_t count,
                              Nonlinearity curve, float* dg, float* du) {
  const std::lock_guard lock(mutex_);
  const bool is_gelu = curve == Nonlinearity::gelu_tanh;
  for_pieces(count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float z = is_gelu ? math::gelu_exponent(g[i]) : g[i];
      const float step = is_gelu ? g[i] * math::gelu_exponent_slope(g[i]) : g[i];
      const float below = 1.0f + math::exp(-z), s = 1.0f / below;
      dg[i] = (d[i] * u[i]) * (s * __builtin_fmaf(step, 1.0f - s, 1.0f));
      du[i] = d[i] * (g[i] / below);
    }
  });
}

// ---- Sums over rows of logits ----

void Operators::log_sum_exp(const float* x, int64_t rows, int64_t width, float* max,
                            float* log_sum) {
  const std::lock_guard lock(mutex_);
  const auto argmax = array<int32_t>(rows);
  const auto has_nan = array<bool>(rows);
  run(kernels_.log_sum_exp, LogitsParams{.logits = x,
                                         .rows = rows,
                                         .stride = width,
                                         .vocab = width,
                                         .argmax = argmax.data(),
                                         .max = max,
                                         .log_sum = log_sum,
                                         .has_nan = has_nan.data()});
}

void Operators::log_softmax_gather(const float* logits, const int32_t* targets, int64_t rows,
                                   int64_t vocab, float* out, float* max, float* log_sum) {
  log_sum_exp(logits, rows, vocab, max, log_sum);
  const ScopedFlushToZero flush;
  for (int64_t t = 0; t < rows; ++t)
    out[t] = (logits[t * vocab + targets[t]] - max[t]) - log_sum[t];
}

void Operators::log_softmax_gather_backward(const float* logits, const int32_t* targets,
                                            const float* max, const float* log_sum,
                                            const float* weights, int64_t rows, int64_t vocab,
                                            float* d_logits) {
  const std::lock_guard lock(mutex_);
  const int64_t stride = activation_stride(vocab);
  const auto memory = array<bf16_t>(rows * stride);
  const Activation out{memory.data(), DType::bf16, stride};
  run(training_.loss, LossParams{.logits = logits,
                                 .rows = rows,
                                 .stride = vocab,
                                 .vocab = vocab,
                                 .max = max,
                                 .log_sum = log_sum,
                                 .targets = targets,
                                 .weights = weights,
                                 .teacher = nullptr,
                                 .out = out});
  widen(out, rows, vocab, d_logits);
}

void Operators::process_logits(const float* logits, int64_t rows, int64_t vocab,
                               SamplingParams params, float* out) {
  const SamplingParams known = checked(std::move(params), static_cast<int32_t>(vocab));
  const std::lock_guard lock(mutex_);
  for_pieces(rows, [&](int64_t begin, int64_t end) {
    const ScopedFlushToZero flush;
    Sampler sampler;
    for (int64_t t = begin; t < end; ++t) {
      const std::span row(logits + t * vocab, static_cast<size_t>(vocab));
      const std::span to(out + t * vocab, static_cast<size_t>(vocab));
      if (sampler.process({.logits = row, .params = &known, .given = 0}))
        std::ranges::fill(to, std::numeric_limits<float>::quiet_NaN());
      else
        std::ranges::copy(sampler.processed().values(), to.begin());
    }
  });
}

void Operators::route(const float* logits, int64_t rows, const Routing& how, const int32_t* given,
                      int32_t* ids, float* weights) {
  for (int64_t i = 0; given && i < rows * how.chosen; ++i)
    if (given[i] >= how.experts || (given[i] < 0 && i % how.chosen > 0 && given[i - 1] >= 0))
      fail_usage("expected experts from 0 to {}, found {}", how.experts - 1, given[i]);
  const std::lock_guard lock(mutex_);
  for_pieces(rows, [&](int64_t begin, int64_t end) {
    const ScopedFlushToZero flush;
    std::vector<float> scores(static_cast<size_t>(how.experts)), choice(scores.size());
    for (int64_t t = begin; t < end; ++t) {
      std::copy_n(logits + t * how.experts, how.experts, scores.data());
      const int32_t* own = given && given[t * how.chosen] >= 0 ? given + t * how.chosen : nullptr;
      routing::route(how, scores.data(), nullptr, choice.data(), ids + t * how.chosen,
                     weights + t * how.chosen, own);
    }
  });
}

void Operators::weighted_sum(const float* y, const float* weights, int64_t rows, int64_t chosen,
                             int64_t width, float* out) {
  const std::lock_guard lock(mutex_);
  for_pieces(rows, [&](int64_t begin, int64_t end) {
    const ScopedFlushToZero flush;
    for (int64_t t = begin; t < end; ++t)
      for (int64_t d = 0; d < width; ++d) {
        float sum = 0;
        for (int64_t i = t * chosen; i < (t + 1) * chosen; ++i)
          sum = std::fma(weights[i], bf16_to_f32(f32_to_bf16(y[i * width + d])), sum);
        out[t * width + d] = sum;
      }
  });
}

void Operators::mean(const float* x, int64_t rows, int64_t width, float* out) {
  const std::lock_guard lock(mutex_);
  for_pieces(rows, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      out[t] =
          orders::sum64({x + t * width, static_cast<size_t>(width)}) / static_cast<float>(width);
  });
}

}  // namespace invar::python
