// The backward's row functions over Vec16. Included after a vec16 header and vec16_math.h.
#pragma once

#include "kernels/cpu/backward_rows.h"

namespace invar::cpu {

namespace {

inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

inline void round(const float* x, int64_t width, uint16_t* out) {
  int64_t i = 0;
  for (; i + 32 <= width; i += 32)
    write_u16(out + i, to_bf16(load(x + i)), to_bf16(load(x + i + 16)));
  for (; i < width; i += 16) store_u16(out + i, to_bf16(load(x + i, width - i)), width - i);
}

// Sixteen bf16 of which `count` exist, as f32.
inline Vec16 load_bf16(const uint16_t* p, int64_t count) {
  if (count >= 16) return value_of(load_u16(p) << 16);
  alignas(64) uint16_t all[16] = {};
  for (int64_t i = 0; i < count; ++i) all[i] = p[i];
  return value_of(load_u16(all) << 16);
}

// One leaf of 32 rows of up to 64 columns: the even rows' chain plus the odd
// ones'. `term(row, k, acc)` goes on with a chain.
template <typename Term>
inline void add_leaf(int blocks, Vec16* acc, Term term) {
  Vec16 even[4], odd[4];
  for (int k = 0; k < 4; ++k) even[k] = odd[k] = splat(0.0f);
  for (int64_t row = 0; row < 32; row += 2)
    for (int k = 0; k < blocks; ++k) {
      even[k] = term(row, k, even[k]);
      odd[k] = term(row + 1, k, odd[k]);
    }
  for (int k = 0; k < blocks; ++k) acc[k] = acc[k] + (even[k] + odd[k]);
}

inline void bias_gradient(const uint16_t* dy, int64_t stride, int64_t leaves, int64_t count,
                          float* gradient) {
  const int blocks = static_cast<int>((count + 15) / 16);
  Vec16 acc[4];
  for (int k = 0; k < blocks; ++k) acc[k] = load(gradient + 16 * k, count - 16 * k);
  for (int64_t leaf = 0; leaf < leaves; ++leaf, dy += 32 * stride)
    add_leaf(blocks, acc, [&](int64_t row, int k, Vec16 chain) {
      return chain + load_bf16(dy + row * stride + 16 * k, count - 16 * k);
    });
  for (int k = 0; k < blocks; ++k) store(gradient + 16 * k, acc[k] + splat(0.0f), count - 16 * k);
}

// Row after row of a leaf, so that memory is read in order: the chains of the leaf's columns stay
// in L1.
inline void norm_gradient(const NormColumns& p) {
  constexpr int64_t kRun = 512;  // columns
  alignas(64) float even[kRun], odd[kRun];
  for (int64_t leaf = 0; leaf < p.leaves; ++leaf)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t i = 0; i < p.count; i += kRun) {
        const int64_t count = smaller(p.count - i, kRun);
        const float* dy = p.dy + leaf * 32 * p.dy_stride + h * p.width + i;
        const float* x = p.x + leaf * 32 * p.x_stride + h * p.width + i;
        const float* rs = p.rs + leaf * 32 * p.rs_stride + h;
        const auto add_row = [&](int64_t row, float* chains) {
          const Vec16 scale = splat(rs[row * p.rs_stride]), zero = splat(0.0f);
          const float *dy_row = dy + row * p.dy_stride, *x_row = x + row * p.x_stride;
          for (int64_t k = 0; k < count; k += 16) {
            // A run of columns ends before a stream of lines is foreseen.
            _mm_prefetch(reinterpret_cast<const char*>(x_row + 6 * p.x_stride + k), _MM_HINT_T0);
            _mm_prefetch(reinterpret_cast<const char*>(dy_row + 6 * p.dy_stride + k), _MM_HINT_T0);
            const Vec16 normed = load(x_row + k, count - k) * scale;
            store(chains + k,
                  fma(load(dy_row + k, count - k), normed, row < 2 ? zero : load(chains + k)));
          }
        };
        for (int64_t row = 0; row < 32; row += 2) {
          add_row(row, even);
          add_row(row + 1, odd);
        }
        float* gradient = p.gradient + i;
        for (int64_t k = 0; k < count; k += 16)
          store(gradient + k, load(gradient + k, count - k) + (load(even + k) + load(odd + k)),
                count - k);
      }
  for (int64_t i = 0; i < p.count; i += 16)
    store(p.gradient + i, load(p.gradient + i, p.count - i) + splat(0.0f), p.count - i);
}

// sum64 of term(i, how many) by fma of its two parts.
template <typename Add>
inline float sum_lanes(int64_t width, Add add) {
  Vec16 lane[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  int64_t i = 0;
  for (; i + 64 <= width; i += 64)
    for (int k = 0; k < 4; ++k) lane[k] = add(i + 16 * k, int64_t{16}, lane[k]);
  for (int k = 0; i < width; i += 16, ++k) {
    const Mask16 real = lanes(0, static_cast<int>(smaller(width - i, 16)));
    lane[k] = select(real, add(i, width - i, lane[k]), lane[k]);
  }
  return halve64(lane);
}

inline float squares(const float* x, int64_t count) {
  return sum_lanes(count, [&](int64_t i, int64_t left, Vec16 lane) {
    const Vec16 v = load(x + i, left);
    return fma(v, v, lane);
  });
}

inline float dot_bf16(const uint16_t* x, const uint16_t* y, int64_t count) {
  return sum_lanes(count, [&](int64_t i, int64_t left, Vec16 lane) {
    return fma(load_bf16(x + i, left), load_bf16(y + i, left), lane);
  });
}

inline float inverse_rms(const float* x, int64_t width, float eps) {
  const float mean = squares(x, width) / static_cast<float>(width) + eps;
  return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean)));
}

// use(i, how many, dx)
template <typename Use>
inline float norm_backward_row(const float* dy, const float* x, const float* weight, int64_t width,
                               float eps, Use use) {
  const float rs = inverse_rms(x, width, eps);
  const Vec16 scale = splat(rs);
  const float sum = sum_lanes(width, [&](int64_t i, int64_t left, Vec16 lane) {
    return fma(load(dy + i, left) * load(weight + i, left), load(x + i, left) * scale, lane);
  });
  const Vec16 minus_mean = splat(-(sum / static_cast<float>(width)));
  for (int64_t i = 0; i < width; i += 16) {
    const int64_t left = width - i;
    const Vec16 d = load(dy + i, left) * load(weight + i, left);
    use(i, left, fma(load(x + i, left) * scale, minus_mean, d) * scale);
  }
  return rs;
}

inline float norm_backward(const float* dy, const float* x, const float* weight, int64_t width,
                           float eps, float* dx) {
  return norm_backward_row(dy, x, weight, width, eps, [&](int64_t i, int64_t left, Vec16 d) {
    store(dx + i, load(dx + i, left) + d, left);
  });
}

inline float head_norm_backward(const float* dy, const float* x, const float* weight, int64_t width,
                                float eps, uint16_t* dx) {
  return norm_backward_row(dy, x, weight, width, eps, [&](int64_t i, int64_t left, Vec16 d) {
    store_u16(dx + i, to_bf16(d), left);
  });
}

inline void gate_backward(const GateRow& p) {
  const Vec16 one = splat(1.0f), zero = splat(0.0f);
  for (int64_t f = 0; f < p.width; f += 16) {
    const int64_t left = p.width - f;
    Vec16 g = load(p.gate_up + 2 * f), u = load(p.gate_up + 2 * f + 16);
    if (p.gate_bias) g = g + load(p.gate_bias + f, left);
    if (p.up_bias) u = u + load(p.up_bias + f, left);
    const Vec16 d = load(p.d_gated + f, left);
    const Vec16 z = p.is_gelu ? gelu_exponent(g) : g;
    const Vec16 step = p.is_gelu ? g * gelu_exponent_slope(g) : g;
    const Vec16 below = one + exp(negated(z)), s = one / below;
    const Vec16 d_gate = (d * u) * (s * fma(step, one - s, one)), d_up = d * (g / below);
    const Mask16 real = lanes(0, static_cast<int>(smaller(left, 16)));
    write_u16(p.out + 2 * f, to_bf16(select(real, d_gate, zero)),
              to_bf16(select(real, d_up, zero)));
  }
}

inline void rotate_back(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t left = half - i;
    const Vec16 a = load(x + i, left), b = load(x + half + i, left);
    const Vec16 c = load(cos + i, left), s = load(sin + i, left);
    store(x + i, fma(a, c, b * s), left);
    store(x + half + i, fms(b, c, a * s), left);
  }
}

inline void loss(const LossRow& p) {
  const Vec16 max = splat(p.max), log_sum = splat(p.log_sum), weight = splat(p.weight);
  const Vec16 zero = splat(0.0f), one = splat(1.0f);
  const float rest = 1.0f - p.teacher_share;
  for (int64_t v = 0; v < p.vocab; v += 16) {
    const int64_t left = p.vocab - v, target = p.target - v;
    const Vec16 probability = exp((load(p.logits + v, left) - max) - log_sum);
    Vec16 wanted = zero;
    if (target >= 0 && target < 16) {
      const int lane = static_cast<int>(target);
      wanted = select(lanes(lane, lane + 1), one, zero);
    }
    if (p.teacher) {
      const Vec16 q =
          exp((load(p.teacher + v, left) - splat(p.teacher_max)) - splat(p.teacher_log_sum));
      wanted = fma(splat(p.teacher_share), q, splat(rest) * wanted);
    }
    store_u16(p.out + v, to_bf16(weight * (probability - wanted)), left);
  }
}

inline void adam(const AdamRun& p) {
  const Vec16 beta1 = splat(p.beta1), beta2 = splat(p.beta2), rest1 = splat(1.0f - p.beta1),
              rest2 = splat(1.0f - p.beta2), scale = splat(p.gradient_scale),
              first_scale = splat(p.first_scale), second_scale = splat(p.second_scale),
              eps = splat(p.eps), minus_rate = splat(-p.rate), decay = splat(p.decay);
  for (int64_t i = 0; i < p.count; i += 16) {
    const int64_t left = p.count - i;
    const Vec16 g = load(p.gradient + i, left) * scale;
    const Vec16 m = fma(beta1, load(p.first + i, left), rest1 * g);
    const Vec16 v = fma(beta2, load(p.second + i, left), (rest2 * g) * g);
    const Vec16 step = (m * first_scale) / (sqrt(v * second_scale) + eps);
    const Vec16 old = load(p.master + i, left);
    const Vec16 w = fma(minus_rate, fma(decay, old, step), old);
    store(p.first + i, m, left);
    store(p.second + i, v, left);
    store(p.master + i, w, left);
    store_u16(p.weights + i, to_bf16(w), left);
  }
}

inline void add(const float* x, int64_t count, float* y) {
  for (int64_t i = 0; i < count; i += 16)
    store(y + i, load(y + i, count - i) + load(x + i, count - i), count - i);
}

// p and ds of one slot and 16 queries from t on, as bf16 in the lower halves.
struct SlotWeights {
  Bits16 p, ds;
};
inline SlotWeights weigh_slot(const ScoreBlock& b, int64_t i, int64_t t, Vec16 minus_max,
                              Vec16 one_by_sum, Vec16 mean) {
  const int64_t slot = b.slot + i, query = b.query + t;
  const int64_t last = b.window > 0 ? smaller(slot + b.window, b.queries_end) : b.queries_end;
  const int64_t begin = slot - query, end = last - query;
  if (begin >= 16 || end <= 0) return {splat_bits(0), splat_bits(0)};
  const Vec16 d = load(b.scores + i * b.stride + t), dp = load(b.d_weights + i * b.stride + t);
  const Vec16 p = exp2(fma(d, splat(b.c), minus_max)) * one_by_sum;
  const Vec16 ds = (p * (dp - mean)) * splat(b.scale);
  if (begin <= 0 && end >= 16) return {to_bf16(p), to_bf16(ds)};
  const Mask16 valid =
      lanes(static_cast<int>(begin < 0 ? 0 : begin), static_cast<int>(smaller(end, 16)));
  return {to_bf16(select(valid, p, splat(0.0f))), to_bf16(select(valid, ds, splat(0.0f)))};
}

inline void weigh(const ScoreBlock& b) {
  for (int64_t t = 0; t < b.queries; t += 16) {
    const Vec16 minus_max = value_of(bits_of(load(b.max + t)) + splat_bits(0x80000000));
    const Vec16 one_by_sum = load(b.one_by_sum + t), mean = load(b.mean + t);
    uint16_t* packed = b.ds_packed + t * b.slots;
    for (int64_t i = 0; i < b.slots; i += 2, packed += 32) {
      const SlotWeights even = weigh_slot(b, i, t, minus_max, one_by_sum, mean);
      const SlotWeights odd = weigh_slot(b, i + 1, t, minus_max, one_by_sum, mean);
      store_u16(b.p + i * b.out_stride + t, even.p);
      store_u16(b.p + (i + 1) * b.out_stride + t, odd.p);
      store_u16(b.ds + i * b.out_stride + t, even.ds);
      store_u16(b.ds + (i + 1) * b.out_stride + t, odd.ds);
      store_bits(packed, (even.ds & splat_bits(0xffff)) | (odd.ds << 16));
    }
  }
}

// All of them, for the set that the file is compiled for.
constexpr BackwardRows kBackwardRows = {.round = round,
                                        .bias_gradient = bias_gradient,
                                        .norm_backward = norm_backward,
                                        .head_norm_backward = head_norm_backward,
                                        .norm_gradient = norm_gradient,
                                        .gate_backward = gate_backward,
                                        .rotate_back = rotate_back,
                                        .loss = loss,
                                        .squares = squares,
                                        .adam = adam,
                                        .add = add,
                                        .dot_bf16 = dot_bf16,
                                        .weigh = weigh};

}  // namespace

}  // namespace invar::cpu
