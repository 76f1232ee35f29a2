// The backward of a recurrence whose channels have decays of their own, where it is another one
// than with one decay a head: what keys and queries of a chunk have of each other, and the decays
// (numerics 9).
#pragma once

#include "kernels/reference/recurrence_chunk.h"

namespace invar::reference {

class ChannelGradients : protected RecurrenceChunk {
 public:
  using RecurrenceChunk::RecurrenceChunk;

 protected:
  // dq, reader and read from the gradients of weights.
  void gradients_in_channels() const {
    for (float* of : {m_.dq, m_.reader, m_.read}) std::fill_n(of, kSlots * r_, 0.0f);
    round_far(m_.d_of_query, m_.rounded);
    round_far(m_.d_of_key, m_.rounded_key);
    for (int first = kStretchSlots; first < rows_; first += kStretchSlots) read_far(first);
    turn(m_.rounded, m_.turned);
    for (int end = kStretchSlots; end < rows_; end += kStretchSlots)
      be_read(m_.q, end, m_.read + (end - kStretchSlots) * r_);
    turn(m_.rounded_key, m_.turned);
    for (int end = kStretchSlots; end < rows_; end += kStretchSlots) add_read_keys(end);
    for (int i = 0; i < rows_; ++i)
      for (int s = stretch_of(i); s <= i; ++s) add_near(i, s);
  }

  // A decay of a channel counts as one of a head does.
  void gradients_of_channels(bool has_next) const {
    float after[kMostStateSize] = {}, before[kMostStateSize] = {};
    for (int i = rows_; i-- > 0;)
      for (int64_t d = 0; d < r_; ++d)
        m_.part[i * r_ + d] = after[d] = gradient_of_sum(i, d) + after[d];
    for (int64_t d = 0; d < r_ && has_next; ++d)
      before[d] = growth(kSlots - 1, d) * dot64(state() + d * v_, m_.d_state + d * v_, v_);
    for (int i = 0; i < rows_; ++i) {
      float* out = p_.d_decays + (row(i) * p_.heads + head_) * r_;
      for (int64_t d = 0; d < r_; ++d) {
        const float sum = m_.part[i * r_ + d];
        out[d] = has_next ? sum + before[d] : sum;
        if (has_next) before[d] = __builtin_fmaf(key(i, d), m_.written[i * r_ + d], before[d]);
      }
    }
  }

 private:
  float query(int i, int64_t d) const { return bf16_to_f32(m_.q[i * key_stride_ + d]); }
  float key(int i, int64_t d) const { return bf16_to_f32(m_.k[i * key_stride_ + d]); }

  // The gradients of weights at earlier stretches.
  void round_far(const float* d, bf16_t* out) const {
    for (int i = 0; i < kSlots; ++i)
      for (int s = 0; s < kSlots; ++s)
        out[i * kSlots + s] =
            i < rows_ && s < stretch_of(i) ? f32_to_bf16(d[i * kSlots + s]) : bf16_t{0};
  }

  // Queries and keys of the stretch from slot `first` on read the keys before it.
  void read_far(int first) const {
    float factors[kMostStateSize];
    for (int s = 0; s < first; ++s) {
      for (int64_t d = 0; d < r_; ++d)
        factors[d] = math::exp(m_.sums[(first - 1) * r_ + d] - m_.sums[s * r_ + d]);
      scale_row(m_.k, s, factors, m_.written_k);
    }
    const int end = std::min(rows_, first + kStretchSlots);
    const auto add = [&](const bf16_t* d, float* y) {
      dots(d + first * kSlots, kSlots, end - first, columns_of(m_.written_k, key_stride_), r_,
           first, y + first * r_);
      for (int i = first; i < end; ++i)
        for (int64_t c = 0; c < r_; ++c) y[i * r_ + c] = behind(first, i)[c] * y[i * r_ + c];
    };
    add(m_.rounded, m_.dq);
    add(m_.rounded_key, m_.reader);
  }

  // Keys of the stretch before slot `end` are read by the rows behind it.
  void be_read(const bf16_t* x, int end, float* y) const {
    carry_rows(x, end, m_.decayed_q);
    dots(m_.turned + (end - kStretchSlots) * kSlots, kSlots, kStretchSlots,
         columns_of(m_.decayed_q, key_stride_), r_, kSlots, y);
  }
  void add_read_keys(int end) const {
    be_read(m_.k, end, m_.part);
    for (int s = end - kStretchSlots; s < end; ++s)
      for (int64_t d = 0; d < r_; ++d) {
        float& read = m_.read[s * r_ + d];
        read = to_end(s)[d] * (read + m_.part[(s % kStretchSlots) * r_ + d]);
      }
  }

  // A row and a slot of one stretch.
  void add_near(int i, int s) const {
    const float *decay = near(i, s), of_query = at(m_.d_of_query, i, s),
                of_key = at(m_.d_of_key, i, s);
    for (int64_t d = 0; d < r_; ++d) {
      float &dq = m_.dq[i * r_ + d], &reader = m_.reader[i * r_ + d], &read = m_.read[s * r_ + d];
      dq = __builtin_fmaf(of_query * decay[d], key(s, d), dq);
      read = __builtin_fmaf(of_query * decay[d], query(i, d), read);
      if (s == i) continue;
      reader = __builtin_fmaf(of_key * decay[d], key(s, d), reader);
      read = __builtin_fmaf(of_key * decay[d], key(i, d), read);
    }
  }

  float gradient_of_sum(int i, int64_t d) const {
    const int64_t place = i * r_ + d;
    const float read = __builtin_fmaf(key(i, d), m_.reader[place], query(i, d) * m_.dq[place]);
    return __builtin_fmaf(-key(i, d), m_.read[place], read);
  }
};

}  // namespace invar::reference
