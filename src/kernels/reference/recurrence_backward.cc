// The backward of recurrences (numerics 9), a head of a sequence at a time. Products are those of
// the table, so that every set has its own; what stands between them is the same on all.
#include <algorithm>

#include "kernels/reference/recurrence_channels.h"
#include "kernels/reference/reference.h"

namespace invar::reference {

namespace {

// One value head of one sequence.
class HeadOfSequence : private ChannelGradients {
 public:
  using ChannelGradients::ChannelGradients;

  void run() {
    const int64_t chunks = (end_ - begin_ + kSlots - 1) / kSlots;
    std::fill_n(m_.states, r_ * v_, 0.0f);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      enter(chunk);
      compute_values();
      if (chunk + 1 < chunks) compute_next_state();
    }
    for (int64_t chunk = chunks; chunk-- > 0;) {
      enter(chunk);
      has_next_ = chunk + 1 < chunks;
      go_back();
    }
  }

 private:
  void go_back() {
    load_gradients();
    weigh(m_.q, m_.of_query, 1);
    dots(m_.d_out, value_stride_, kSlots, rows_of(values(0), value_stride_), kSlots, v_,
         m_.d_of_query);
    gradients_of_values();
    gradients_of_rests();
    gradients_of_keys();
    gradients_of_decays();
    gradient_of_state();
    add_to_key_head();
  }

  void load_gradients() const {
    std::fill_n(m_.d_out, kSlots * value_stride_, bf16_t{0});
    for (int i = 0; i < rows_; ++i)
      for (int64_t e = 0; e < v_; ++e)
        m_.d_out[i * value_stride_ + e] =
            f32_to_bf16(p_.d_out[row(i) * p_.d_out_stride + head_ * v_ + e]);
  }

  // u's gradient: outputs and the next state read it.
  void gradients_of_values() const {
    round_weights(m_.of_query, 0, kSlots, 0, kSlots, m_.rounded);
    turn(m_.rounded, m_.turned);
    dots(m_.turned, kSlots, rows_, columns_of(m_.d_out, value_stride_), v_, kSlots, m_.d_value);
    if (!has_next_) return;
    decay_rows(m_.k, m_.until, m_.written_k);
    dots(m_.written_k, key_stride_, rows_, state_by_values(m_.d_state), v_, r_, m_.of_state);
    for (int64_t i = 0; i < rows_ * v_; ++i) m_.d_value[i] = m_.d_value[i] + m_.of_state[i];
  }

  // r's gradient, the last row first: later rows' values read u.
  void gradients_of_rests() const {
    std::fill_n(m_.d_rest, kSlots * value_stride_, bf16_t{0});
    if (is_delta()) {
      round_weights(m_.of_key, 0, kSlots, 0, kSlots, m_.rounded_key);
      turn(m_.rounded_key, m_.turned);
    }
    for (int first = (rows_ - 1) / kStretchSlots * kStretchSlots; first >= 0;
         first -= kStretchSlots) {
      const int end = std::min(rows_, first + kStretchSlots);
      if (is_delta() && end < rows_)  // rows of this stretch are still +0
        dots(m_.turned + first * kSlots, kSlots, end - first, columns_of(m_.d_rest, value_stride_),
             v_, kSlots, m_.of_state + first * v_);
      for (int i = end; i-- > first;) gradient_of_rest(i, end);
    }
  }

  void gradient_of_rest(int i, int end) const {
    float *du = m_.d_value + i * v_, *dr = m_.d_rest_f32 + i * v_;
    if (is_delta()) {
      for (int64_t e = 0; e < v_ && end < rows_; ++e) du[e] = du[e] - m_.of_state[i * v_ + e];
      for (int t = end; t-- > i + 1;)
        for (int64_t e = 0; e < v_; ++e)
          du[e] = __builtin_fmaf(-at(m_.of_key, t, i), m_.d_rest_f32[t * v_ + e], du[e]);
    }
    float* dv = p_.dv + row(i) * p_.d_stride + head_ * v_;
    const float skip = p_.skips ? p_.skips[head_] : 0.0f;
    for (int64_t e = 0; e < v_; ++e) {
      dr[e] = factor(i) * du[e];
      m_.d_rest[i * value_stride_ + e] = f32_to_bf16(dr[e]);
      const float d = bf16_to_f32(m_.d_out[i * value_stride_ + e]);
      dv[e] = p_.skips ? __builtin_fmaf(skip, d, dr[e]) : dr[e];
    }
    p_.d_factors[row(i) * p_.heads + head_] = dot64(du, rest(i), v_);
    if (!p_.d_skips) return;
    alignas(64) float d[kMostStateSize];
    for (int64_t e = 0; e < v_; ++e) d[e] = bf16_to_f32(m_.d_out[i * value_stride_ + e]);
    p_.d_skips[row(i) * p_.heads + head_] = dot64(d, v(i), v_);
  }

  void gradients_of_keys() const {
    if (is_delta()) gradients_of_reading_weights();
    if (has_channels())
      gradients_in_channels();
    else
      gradients_in_chunk();
    if (chunk_ > 0) gradients_at_state();
    if (!has_next_) return;
    dots(values(0), value_stride_, rows_, state_by_keys(m_.d_state), r_, v_, m_.written);
    for (int i = 0; i < rows_; ++i)
      for (int64_t d = 0; d < r_; ++d)
        m_.written[i * r_ + d] = of_channel(m_.until, i, d) * m_.written[i * r_ + d];
  }

  void gradients_of_reading_weights() const {
    dots(m_.d_rest, value_stride_, kSlots, rows_of(values(0), value_stride_), kSlots, v_,
         m_.d_of_key);
    for (int i = 0; i < kSlots * kSlots; ++i) m_.d_of_key[i] = -m_.d_of_key[i];
  }

  // Queries and keys read the chunk's keys.
  void gradients_in_chunk() const {
    const auto keys = columns_of(m_.k, key_stride_);
    decay_weights(m_.d_of_query, 1, m_.rounded);
    dots(m_.rounded, kSlots, rows_, keys, r_, kSlots, m_.dq);
    turn(m_.rounded, m_.turned);
    dots(m_.turned, kSlots, rows_, columns_of(m_.q, key_stride_), r_, kSlots, m_.read);
    if (!is_delta()) return;
    decay_weights(m_.d_of_key, 0, m_.rounded_key);
    dots(m_.rounded_key, kSlots, rows_, keys, r_, kSlots, m_.reader);
    turn(m_.rounded_key, m_.turned);
    dots(m_.turned, kSlots, rows_, keys, r_, kSlots, m_.part);
    for (int64_t i = 0; i < rows_ * r_; ++i) m_.read[i] = m_.read[i] + m_.part[i];
  }

  // They read the state.
  void gradients_at_state() const {
    const auto add = [&](const bf16_t* d, float sign, float* y) {
      dots(d, value_stride_, rows_, state_by_keys(state()), r_, v_, m_.part);
      for (int i = 0; i < rows_; ++i)
        for (int64_t c = 0; c < r_; ++c)
          y[i * r_ + c] = y[i * r_ + c] + sign * growth(i, c) * m_.part[i * r_ + c];
    };
    add(m_.d_out, 1.0f, m_.dq);
    if (is_delta()) add(m_.d_rest, -1.0f, m_.reader);
  }

  // From the gradients of weights to those of the dots in them.
  void decay_weights(const float* d, int own, bf16_t* out) const {
    for (int i = 0; i < kSlots; ++i)
      for (int s = 0; s < kSlots; ++s)
        out[i * kSlots + s] = s < i + own && i < rows_
                                  ? f32_to_bf16(d[i * kSlots + s] * at(m_.decay, i, s))
                                  : bf16_t{0};
  }

  // The gradient of a row's sum of decays, which multiplies some numbers and divides others.
  float gradient_of_sum(int i) const {
    float lane[64] = {};
    for (int64_t d = 0; d < r_; ++d) {
      const float q = bf16_to_f32(m_.q[i * key_stride_ + d]),
                  k = bf16_to_f32(m_.k[i * key_stride_ + d]);
      float& sum = lane[d % 64];
      sum = __builtin_fmaf(q, m_.dq[i * r_ + d], sum);
      if (is_delta()) sum = __builtin_fmaf(k, m_.reader[i * r_ + d], sum);
      sum = __builtin_fmaf(-k, m_.read[i * r_ + d], sum);
    }
    return orders::halve64(lane);
  }
  float gradient_of_writing(int i) const {
    float k[kMostStateSize];
    for (int64_t d = 0; d < r_; ++d) k[d] = bf16_to_f32(m_.k[i * key_stride_ + d]);
    return dot64(k, m_.written + i * r_, r_);
  }

  // A decay counts in all sums from its row on, and in what is written to the state before it.
  void gradients_of_decays() const {
    if (has_channels()) return gradients_of_channels(has_next_);
    float after = 0.0f, before = 0.0f, d[kSlots];
    for (int i = rows_; i-- > 0;) d[i] = after = gradient_of_sum(i) + after;
    if (has_next_) {
      float of_channels[kMostStateSize];
      for (int64_t c = 0; c < r_; ++c)
        of_channels[c] = dot64(state() + c * v_, m_.d_state + c * v_, v_);
      before = m_.growth[kSlots - 1] * orders::sum64({of_channels, static_cast<size_t>(r_)});
    }
    for (int i = 0; i < rows_; ++i) {
      p_.d_decays[row(i) * p_.heads + head_] = has_next_ ? d[i] + before : d[i];
      if (has_next_) before = before + gradient_of_writing(i);
    }
  }

  void gradient_of_state() const {
    if (chunk_ == 0) return;
    float* d = m_.d_of_queries;
    decay_rows(m_.q, m_.growth, m_.decayed_q);
    turn_keys(m_.decayed_q);
    dots(m_.columns, kSlots, r_, columns_of(m_.d_out, value_stride_), v_, kSlots, d);
    if (is_delta()) {
      decay_rows(m_.k, m_.growth, m_.decayed_k);
      turn_keys(m_.decayed_k);
      dots(m_.columns, kSlots, r_, columns_of(m_.d_rest, value_stride_), v_, kSlots, m_.d_of_keys);
      for (int64_t i = 0; i < r_ * v_; ++i) d[i] = d[i] - m_.d_of_keys[i];
    }
    for (int64_t c = 0; c < r_; ++c)
      for (int64_t i = c * v_; i < (c + 1) * v_; ++i)
        m_.d_state[i] =
            has_next_ ? __builtin_fmaf(growth(kSlots - 1, c), m_.d_state[i], d[i]) : d[i];
  }

  // Value heads of a key head, ascending.
  void add_to_key_head() const {
    const bool is_first = head_ % (p_.heads / p_.key_heads) == 0;
    for (int i = 0; i < rows_; ++i) {
      float* dq = p_.dq + row(i) * p_.d_stride + key_head_ * r_;
      float* dk = p_.dk + row(i) * p_.d_stride + key_head_ * r_;
      for (int64_t d = 0; d < r_; ++d) {
        const int64_t at = i * r_ + d;
        float k = is_delta() ? m_.reader[at] + m_.read[at] : m_.read[at];
        if (has_next_) k = k + m_.written[at];
        dq[d] = (is_first ? 0.0f : dq[d]) + m_.dq[at];
        dk[d] = (is_first ? 0.0f : dk[d]) + k;
      }
    }
  }

  bool has_next_ = false;
};

}  // namespace

int64_t recurrence_backward_scratch(int64_t max_positions, int64_t key_size, int64_t value_size) {
  return RecurrenceMemory(nullptr, max_positions, key_size, value_size).bytes;
}

void recurrence_backward(const RecurrenceBackwardParams& p, const Execution& on) {
  const RecurrenceMemory memory(p.scratch + on.share.index * p.scratch_stride, p.max_positions,
                                p.key_size, p.value_size);
  const int per_key = p.heads / p.key_heads;
  int64_t unit = 0;
  for (int32_t i = 0; i < p.sequences; ++i)
    for (int key_head = 0; key_head < p.key_heads; ++key_head) {
      if (unit++ % on.share.count != on.share.index) continue;
      for (int head = key_head * per_key; head < (key_head + 1) * per_key; ++head)
        HeadOfSequence(p, p.sequence_begin[i], p.sequence_begin[i + 1], head, memory).run();
    }
}

}  // namespace invar::reference
