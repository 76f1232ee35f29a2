// A chunk of a recurrence computed again for its backward: rows, decays, weights, values and the
// state behind it.
#pragma once

#include <algorithm>

#include "kernels/recurrent_backward.h"
#include "kernels/reference/norm_rows.h"
#include "kernels/reference/recurrence_memory.h"

namespace invar::reference {

// A chunk of one value head of one sequence.
class RecurrenceChunk {
 public:
  RecurrenceChunk(const RecurrenceBackwardParams& p, int64_t begin, int64_t end, int head,
                  const RecurrenceMemory& memory)
      : p_(p),
        m_(memory),
        begin_(begin),
        end_(end),
        head_(head),
        key_head_(head / (p.heads / p.key_heads)),
        r_(p.key_size),
        v_(p.value_size),
        key_stride_(round_up(r_, kLeafPad)),
        value_stride_(round_up(v_, kLeafPad)),
        channels_(p.kind == Recurrence::channel_delta ? r_ : 1),
        whole_{.share = {}} {}

 protected:
  bool is_delta() const { return p_.kind != Recurrence::state_space; }
  bool has_channels() const { return p_.kind == Recurrence::channel_delta; }
  int64_t row(int slot) const { return begin_ + chunk_ * kSlots + slot; }
  float* state() const { return m_.states + chunk_ * r_ * v_; }
  bf16_t* values(int slot) const { return m_.values + (chunk_ * kSlots + slot) * value_stride_; }
  float* rest(int slot) const { return m_.rests + (chunk_ * kSlots + slot) * v_; }
  const float* v(int slot) const { return p_.v + row(slot) * p_.v_stride + head_ * v_; }
  float factor(int slot) const { return p_.factors[row(slot) * p_.heads + head_]; }
  static float& at(float* square, int row, int slot) { return square[row * kSlots + slot]; }
  // A slot's number of a channel, or of all.
  float& of_channel(float* slots, int slot, int64_t d) const {
    return slots[slot * channels_ + (has_channels() ? d : 0)];
  }
  float growth(int slot, int64_t d) const { return of_channel(m_.growth, slot, d); }

  // y[i][n] = dot(x_i, w_n) over k elements; w(n, k) gives elements of w.
  template <typename W>
  void dots(const bf16_t* x, int64_t stride, int64_t rows, W w, int64_t n, int64_t k, float* y,
            int64_t y_stride = 0) const {
    bf16_t* out = m_.packed;
    for (int64_t first = 0; first < n; first += 16)
      for (int64_t pair = 0; pair < round_up(k, kLeafPad); pair += 2)
        for (int64_t i = first; i < first + 16; ++i)
          for (int64_t j = pair; j < pair + 2; ++j) *out++ = i < n && j < k ? w(i, j) : bf16_t{0};
    p_.matmul({.x = {const_cast<bf16_t*>(x), DType::bf16, stride},
               .w = {.data = m_.packed, .type = DType::bf16, .n = n, .k = k},
               .rows = rows,
               .split_k = 1,
               .bias = nullptr,
               .accumulate = false,
               .y = y,
               .y_stride = y_stride ? y_stride : n},
              whole_);
  }
  // The same of rows of keys, values, or slots.
  auto rows_of(const bf16_t* x, int64_t stride) const {
    return [=](int64_t n, int64_t k) { return x[n * stride + k]; };
  }
  auto columns_of(const bf16_t* x, int64_t stride) const {
    return [=](int64_t n, int64_t k) { return x[k * stride + n]; };
  }
  auto state_by_values(const float* x) const {  // outputs e, inner elements d
    return [=, v = v_](int64_t e, int64_t d) { return f32_to_bf16(x[d * v + e]); };
  }
  auto state_by_keys(const float* x) const {
    return [=, v = v_](int64_t d, int64_t e) { return f32_to_bf16(x[d * v + e]); };
  }

  // Rows, sums and decays of a chunk; rows that are not there are zeros.
  void enter(int64_t chunk) {
    chunk_ = chunk;
    rows_ = static_cast<int>(std::min<int64_t>(kSlots, end_ - row(0)));
    std::fill_n(m_.q, kSlots * key_stride_, bf16_t{0});
    std::fill_n(m_.k, kSlots * key_stride_, bf16_t{0});
    for (int i = 0; i < rows_; ++i) {
      const int64_t from = (row(i) * p_.key_heads + key_head_) * key_stride_;
      std::copy_n(p_.q + from, r_, m_.q + i * key_stride_);
      std::copy_n(p_.k + from, r_, m_.k + i * key_stride_);
    }
    add_decays();
    if (has_channels())
      decay_channels();
    else
      decay_slots();
    if (is_delta()) weigh(m_.k, m_.of_key, 0);
  }

  // Sums of decays, exp of them, and of what is left to the boundary.
  void add_decays() const {
    for (int64_t d = 0; d < channels_; ++d) {
      float sum = 0.0f;
      for (int i = 0; i < rows_; ++i) {
        sum = sum + p_.decays[(row(i) * p_.heads + head_) * channels_ + d];
        of_channel(m_.sums, i, d) = sum;
        of_channel(m_.growth, i, d) = math::exp(sum);
      }
      for (int i = 0; i < rows_ && rows_ == kSlots; ++i)
        of_channel(m_.until, i, d) = math::exp(sum - of_channel(m_.sums, i, d));
    }
  }
  void decay_slots() const {
    for (int i = 0; i < kSlots; ++i)
      for (int s = 0; s < kSlots; ++s)
        at(m_.decay, i, s) = s <= i && i < rows_ ? math::exp(m_.sums[i] - m_.sums[s]) : 0.0f;
  }
  void decay_channels() const {
    const auto leave = [&](float* to, int later, int earlier) {
      for (int64_t d = 0; d < r_; ++d)
        to[d] = math::exp(m_.sums[later * r_ + d] - m_.sums[earlier * r_ + d]);
    };
    for (int i = 0; i < rows_; ++i) {
      const int first = stretch_of(i);
      for (int s = first; s <= i; ++s) leave(near(i, s), i, s);
      for (int end = kStretchSlots; end <= first; end += kStretchSlots)
        leave(behind(end, i), i, end - 1);
      if (first + kStretchSlots <= rows_) leave(to_end(i), first + kStretchSlots - 1, i);
    }
  }
  static int stretch_of(int slot) { return slot / kStretchSlots * kStretchSlots; }
  // exp(G_i - G_s), with s in i's stretch.
  float* near(int i, int s) const { return m_.near + (i * kStretchSlots + s % kStretchSlots) * r_; }
  // exp(G_i - G_m), m the last slot of the stretch before slot `end`.
  float* behind(int end, int i) const {
    return m_.behind + ((end / kStretchSlots - 1) * kSlots + i) * r_;
  }
  // exp(G_m - G_s), m the last slot of s's stretch.
  float* to_end(int s) const { return m_.to_end + s * r_; }

  // Weights of rows' queries or keys at the slots up to their own, `own` of that counted in.
  void weigh(const bf16_t* x, float* weights, int own) const {
    if (has_channels()) return weigh_channels(x, weights, own);
    dots(x, key_stride_, kSlots, rows_of(m_.k, key_stride_), kSlots, r_, weights);
    for (int i = 0; i < kSlots; ++i)
      for (int s = 0; s < kSlots; ++s)
        at(weights, i, s) = s < i + own ? at(m_.decay, i, s) * at(weights, i, s) : 0.0f;
  }

  void weigh_channels(const bf16_t* x, float* weights, int own) const {
    std::fill_n(weights, kSlots * kSlots, 0.0f);
    for (int end = kStretchSlots; end < rows_; end += kStretchSlots) {
      const int first = end - kStretchSlots;
      carry_rows(x, end, m_.decayed_q);
      for (int s = first; s < end; ++s) scale_row(m_.k, s, to_end(s), m_.written_k);
      dots(m_.decayed_q + end * key_stride_, key_stride_, rows_ - end,
           rows_of(m_.written_k + first * key_stride_, key_stride_), kStretchSlots, r_,
           &at(weights, end, first), kSlots);
    }
    for (int i = 0; i < rows_; ++i)
      for (int s = stretch_of(i); s < i + own; ++s) at(weights, i, s) = weight_in_stretch(x, i, s);
  }
  float weight_in_stretch(const bf16_t* x, int i, int s) const {
    float lane[64] = {};
    const float* decay = near(i, s);
    for (int64_t d = 0; d < r_; ++d)
      lane[d % 64] = __builtin_fmaf(bf16_to_f32(x[i * key_stride_ + d]) * decay[d],
                                    bf16_to_f32(m_.k[s * key_stride_ + d]), lane[d % 64]);
    return orders::halve64(lane);
  }

  // One row of keys or queries times a number of each channel.
  void scale_row(const bf16_t* x, int i, const float* factors, bf16_t* out) const {
    const bf16_t* from = x + i * key_stride_;
    bf16_t* to = out + i * key_stride_;
    for (int64_t d = 0; d < r_; ++d) to[d] = f32_to_bf16(bf16_to_f32(from[d]) * factors[d]);
    std::fill(to + r_, to + key_stride_, bf16_t{0});
  }
  // Rows from slot `end` on as they stand to the slot before it; others are +0.
  void carry_rows(const bf16_t* x, int end, bf16_t* out) const {
    std::fill_n(out, kSlots * key_stride_, bf16_t{0});
    for (int i = end; i < rows_; ++i) scale_row(x, i, behind(end, i), out);
  }

  // u and r of the chunk's rows, as the forward has them.
  void compute_values() const {
    std::fill_n(values(0), kSlots * value_stride_, bf16_t{0});
    if (is_delta() && chunk_ > 0) read_state();
    for (int first = 0; first < rows_; first += kStretchSlots) {
      const int end = std::min(rows_, first + kStretchSlots);
      if (is_delta() && first > 0) {
        round_weights(m_.of_key, first, end, 0, first, m_.rounded);
        dots(m_.rounded + first * kSlots, kSlots, end - first, columns_of(values(0), value_stride_),
             v_, kSlots, m_.d_value + first * v_);
      }
      for (int i = first; i < end; ++i) compute_value(i, first);
    }
  }

  // Keys read the state.
  void read_state() const {
    if (has_channels()) decay_rows(m_.k, m_.growth, m_.decayed_k);
    dots(has_channels() ? m_.decayed_k : m_.k, key_stride_, rows_, state_by_values(state()), v_, r_,
         m_.of_state);
  }

  void compute_value(int i, int stretch) const {
    float* r = rest(i);
    const float decay = has_channels() ? 1.0f : m_.growth[i];
    for (int64_t e = 0; e < v_; ++e) {
      r[e] = v(i)[e];
      if (!is_delta()) continue;
      if (chunk_ > 0) r[e] = __builtin_fmaf(-decay, m_.of_state[i * v_ + e], r[e]);
      if (stretch > 0) r[e] = r[e] - m_.d_value[i * v_ + e];
    }
    for (int s = stretch; s < i && is_delta(); ++s)
      for (int64_t e = 0; e < v_; ++e)
        r[e] = __builtin_fmaf(-at(m_.of_key, i, s), bf16_to_f32(values(s)[e]), r[e]);
    for (int64_t e = 0; e < v_; ++e) values(i)[e] = f32_to_cached_bf16(factor(i) * r[e]);
  }

  // Rows [first, end) of weights as bf16, +0 but for the slots [begin, behind).
  static void round_weights(float* weights, int first, int end, int begin, int behind,
                            bf16_t* out) {
    for (int i = first; i < end; ++i)
      for (int s = 0; s < kSlots; ++s)
        out[i * kSlots + s] = s >= begin && s < behind ? f32_to_bf16(at(weights, i, s)) : bf16_t{0};
  }
  // Row s of out has what row i of x has at s.
  static void turn(const bf16_t* x, bf16_t* out) {
    for (int i = 0; i < kSlots; ++i)
      for (int s = 0; s < kSlots; ++s) out[s * kSlots + i] = x[i * kSlots + s];
  }
  // Rows of keys or queries times numbers of slots.
  void decay_rows(const bf16_t* x, float* factors, bf16_t* out) const {
    for (int i = 0; i < kSlots; ++i)
      for (int64_t d = 0; d < key_stride_; ++d)
        out[i * key_stride_ + d] =
            i < rows_ && d < r_
                ? f32_to_bf16(bf16_to_f32(x[i * key_stride_ + d]) * of_channel(factors, i, d))
                : bf16_t{0};
  }
  // Channels as rows of slots.
  void turn_keys(const bf16_t* x) const {
    for (int64_t d = 0; d < r_; ++d)
      for (int i = 0; i < kSlots; ++i) m_.columns[d * kSlots + i] = x[i * key_stride_ + d];
  }

  void compute_next_state() const {
    decay_rows(m_.k, m_.until, m_.written_k);
    turn_keys(m_.written_k);
    float* next = state() + r_ * v_;
    dots(m_.columns, kSlots, r_, columns_of(values(0), value_stride_), v_, kSlots, next);
    for (int64_t d = 0; d < r_; ++d)
      for (int64_t i = d * v_; i < (d + 1) * v_; ++i)
        next[i] = __builtin_fmaf(growth(kSlots - 1, d), state()[i], next[i]);
  }

  const RecurrenceBackwardParams& p_;
  const RecurrenceMemory& m_;
  const int64_t begin_, end_;
  const int head_, key_head_;
  const int64_t r_, v_, key_stride_, value_stride_, channels_;
  const Execution whole_;
  int64_t chunk_ = 0;
  int rows_ = 0;
};

}  // namespace invar::reference
