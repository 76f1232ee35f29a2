// The backward of a recurrence whose channels have decays of their own, where it is another one
// than with one decay a head (kernels/reference/recurrence_channels.h on a GPU).
#pragma once

#include "kernels/cuda/recurrence_backward_chunk.cuh"

namespace invar::cuda {

template <Order order>
class ChannelGradients : protected RecurrenceChunk<order> {
  using Chunk = RecurrenceChunk<order>;

 public:
  using Chunk::Chunk;

 protected:
  using Chunk::decay, Chunk::growth, Chunk::key, Chunk::m_, Chunk::numbers_, Chunk::operands_,
      Chunk::p_, Chunk::query, Chunk::r_, Chunk::row, Chunk::rows_, Chunk::scaled,
      Chunk::stretch_of;

  __device__ float* dq() const { return m_.dq + this->chunk_ * kSlots * r_; }

  // dq, reader and read from the gradients of weights.
  __device__ void gradients_in_channels() {
    for (int at = threadIdx.x; at < kSlots * r_; at += kBackwardThreads)
      dq()[at] = m_.reader[at] = m_.read[at] = 0.0f;
    for (int first = kStretchSlots; first < rows_; first += kStretchSlots) read_far(first);
    for (int end = kStretchSlots; end < rows_; end += kStretchSlots) be_read(end);
    __syncthreads();
    for (int at = threadIdx.x; at < rows_ * r_; at += kBackwardThreads) add_near(at / r_, at % r_);
  }

  // A decay of a channel counts as one of a head does. `of_channels` has what the state had.
  __device__ void gradients_of_channels(bool has_next) const {
    for (int d = threadIdx.x; d < r_; d += kBackwardThreads) {
      float after = 0.0f;
      for (int i = rows_; i-- > 0;) m_.behind[i * r_ + d] = after = gradient_of_sum(i, d) + after;
      float before = has_next ? growth(kSlots - 1, d) * numbers_.of_channels[d] : 0.0f;
      for (int i = 0; i < rows_; ++i) {
        const float sum = m_.behind[i * r_ + d];
        p_.d_decays[(row(i) * p_.heads + this->head_) * r_ + d] = has_next ? sum + before : sum;
        if (has_next) before = __fmaf_rn(f32(key(i, d)), m_.written[i * r_ + d], before);
      }
    }
  }

 private:
  __device__ static float f32(bf16_t x) { return bf16_to_f32(x); }
  // The gradient of a weight at an earlier stretch.
  __device__ bf16_t far(const float* d, int i, int s) const {
    return i < rows_ && s < stretch_of(i) ? f32_to_bf16(d[i * kSlots + s]) : bf16_t{0};
  }

  // Queries and keys of the stretch from slot `first` on read the keys before it.
  __device__ void read_far(int first) {
    const int rows = min(rows_, first + kStretchSlots) - first;
    const auto weights = [&](const float* d) {
      return [=, this](int i, int s) { return far(d, first + i, s); };
    };
    const auto leave = [&](float* y) {
      return [=, this](int i, int d, float dot) {
        y[(first + i) * r_ + d] = decay(first + i, first - 1, d) * dot;
      };
    };
    operands_.multiply(
        rows, r_, first, along_inner(weights(m_.d_of_query)),
        along_rows([&](int d, int s) { return scaled(key(s, d), decay(first - 1, s, d)); }),
        leave(dq()));
    operands_.multiply_by_same(rows, r_, first, along_inner(weights(m_.d_of_key)),
                               leave(m_.reader));
  }

  // Keys of the stretch before slot `end` are read by the rows behind it.
  __device__ void be_read(int end) {
    const int first = end - kStretchSlots;
    const auto weights = [&](const float* d) {
      return along_rows([=, this](int s, int i) { return far(d, i, first + s); });
    };
    operands_.multiply(kStretchSlots, r_, kSlots, weights(m_.d_of_query),
                       along_rows([&](int d, int i) { return carried(query(i, d), end, i, d); }),
                       [&](int s, int d, float dot) { m_.read[(first + s) * r_ + d] = dot; });
    operands_.multiply(kStretchSlots, r_, kSlots, weights(m_.d_of_key),
                       along_rows([&](int d, int i) { return carried(key(i, d), end, i, d); }),
                       [&](int s, int d, float dot) {
                         float& read = m_.read[(first + s) * r_ + d];
                         read = decay(end - 1, first + s, d) * (read + dot);
                       });
  }
  // A row from slot `end` on as it stands to the slot before it.
  __device__ bf16_t carried(bf16_t x, int end, int i, int d) const {
    return i >= end && i < rows_ ? scaled(x, decay(i, end - 1, d)) : bf16_t{0};
  }

  // Channel d of the slots of row i's stretch that it reads, and of the rows that read it.
  __device__ void add_near(int i, int d) const {
    const int first = stretch_of(i), end = min(rows_, first + kStretchSlots);
    float& dq_of = dq()[i * r_ + d];
    float &reader = m_.reader[i * r_ + d], &read = m_.read[i * r_ + d];
    for (int s = first; s <= i; ++s) {
      const float near = decay(i, s, d);
      dq_of = __fmaf_rn(m_.d_of_query[i * kSlots + s] * near, f32(key(s, d)), dq_of);
      if (s < i) reader = __fmaf_rn(m_.d_of_key[i * kSlots + s] * near, f32(key(s, d)), reader);
    }
    for (int t = i; t < end; ++t) {
      const float near = decay(t, i, d);
      read = __fmaf_rn(m_.d_of_query[t * kSlots + i] * near, f32(query(t, d)), read);
      if (t > i) read = __fmaf_rn(m_.d_of_key[t * kSlots + i] * near, f32(key(t, d)), read);
    }
  }

  __device__ float gradient_of_sum(int i, int d) const {
    const int at = i * r_ + d;
    const float read = __fmaf_rn(f32(key(i, d)), m_.reader[at], f32(query(i, d)) * dq()[at]);
    return __fmaf_rn(-f32(key(i, d)), m_.read[at], read);
  }
};

}  // namespace invar::cuda
