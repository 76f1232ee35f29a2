// A chunk of a recurrence computed again for its backward: decays, weights, values and the state
// behind it (kernels/reference/recurrence_chunk.h on a GPU).
#pragma once

#include "kernels/cuda/recurrence_backward_memory.cuh"
#include "kernels/cuda/recurrence_backward_products.cuh"
#include "kernels/cuda/warp_norms.cuh"
#include "kernels/recurrent_backward.h"

namespace invar::cuda {

constexpr int kSlots = kChunkSlots;

// A chunk of one value head of one sequence, by a block. Rows that are not there are zeros.
template <Order order>
class RecurrenceChunk {
 public:
  __device__ RecurrenceChunk(const RecurrenceBackwardParams& p, int sequence, int head,
                             const HeadMemory& memory, const Operands<order>& operands,
                             ChunkNumbers& numbers)
      : p_(p),
        m_(memory),
        numbers_(numbers),
        operands_(operands),
        begin_(p.sequence_begin[sequence]),
        end_(p.sequence_begin[sequence + 1]),
        head_(head),
        key_head_(head / (p.heads / p.key_heads)),
        r_(p.key_size),
        v_(p.value_size),
        channels_(p.kind == Recurrence::channel_delta ? p.key_size : 1) {}

 protected:
  __device__ bool is_delta() const { return p_.kind != Recurrence::state_space; }
  __device__ bool has_channels() const { return p_.kind == Recurrence::channel_delta; }
  __device__ int64_t row(int slot) const { return begin_ + chunk_ * kSlots + slot; }
  __device__ static int stretch_of(int slot) { return slot / kStretchSlots * kStretchSlots; }

  __device__ float* state() const { return m_.states + chunk_ * r_ * v_; }
  __device__ float* rest(int slot) const { return m_.rests + (chunk_ * kSlots + slot) * v_; }
  __device__ float factor(int slot) const { return p_.factors[row(slot) * p_.heads + head_]; }
  __device__ const float* v(int slot) const { return p_.v + row(slot) * p_.v_stride + head_ * v_; }
  __device__ bf16_t& value_at(int slot, int e) const {
    return m_.values[(chunk_ * kSlots + slot) * v_ + e];
  }
  __device__ bf16_t value(int slot, int e) const {
    return slot < rows_ ? value_at(slot, e) : bf16_t{0};
  }
  __device__ bf16_t query(int slot, int d) const { return of_key_head(p_.q, slot, d); }
  __device__ bf16_t key(int slot, int d) const { return of_key_head(p_.k, slot, d); }
  __device__ bf16_t d_out(int slot, int e) const {
    return slot < rows_ ? f32_to_bf16(p_.d_out[row(slot) * p_.d_out_stride + head_ * v_ + e])
                        : bf16_t{0};
  }

  // Sums of decays, exp of them, of differences, and of what is left to the boundary.
  __device__ float sum(int slot, int d) const {
    return m_.sums[slot * channels_ + (has_channels() ? d : 0)];
  }
  __device__ float decay(int later, int earlier, int d = 0) const {
    return math::exp(sum(later, d) - sum(earlier, d));
  }
  __device__ float growth(int slot, int d) const {
    return has_channels() ? math::exp(sum(slot, d)) : numbers_.growth[slot];
  }
  __device__ float until(int slot, int d) const {
    return has_channels() ? decay(kSlots - 1, slot, d) : numbers_.until[slot];
  }
  // Element d of a row of keys or queries times its number, rounded.
  __device__ static bf16_t scaled(bf16_t x, float factor) {
    return f32_to_bf16(bf16_to_f32(x) * factor);
  }
  __device__ bf16_t grown(bf16_t x, int slot, int d) const {
    return slot < rows_ ? scaled(x, growth(slot, d)) : bf16_t{0};
  }
  __device__ bf16_t written_key(int slot, int d) const {
    return slot < rows_ ? scaled(key(slot, d), until(slot, d)) : bf16_t{0};
  }

  // The sums and weights of keys of a chunk.
  __device__ void enter(int64_t chunk) {
    __syncthreads();
    chunk_ = chunk;
    rows_ = static_cast<int>(min(int64_t{kSlots}, end_ - row(0)));
    for (int at = threadIdx.x; at < rows_ * channels_; at += kBackwardThreads)
      m_.sums[at] =
          p_.decays[(row(at / channels_) * p_.heads + head_) * channels_ + at % channels_];
    __syncthreads();
    for (int d = threadIdx.x; d < channels_; d += kBackwardThreads) {
      float sum = 0.0f;
      for (int i = 0; i < rows_; ++i) {
        sum = sum + m_.sums[i * channels_ + d];
        m_.sums[i * channels_ + d] = sum;
      }
    }
    __syncthreads();
    if (const int i = threadIdx.x; !has_channels() && i < rows_) {
      numbers_.growth[i] = math::exp(m_.sums[i]);
      numbers_.until[i] = math::exp(m_.sums[rows_ - 1] - m_.sums[i]);  // of whole chunks
    }
    const auto keys = [this](int i, int d) { return key(i, d); };
    if (is_delta()) weigh(keys, m_.of_key, 0);
  }

  // Weights of rows' queries or keys at the slots up to their own, `own` of that counted in.
  template <typename X>
  __device__ void weigh(const X& x, float* weights, int own) {
    if (has_channels()) return weigh_channels(x, weights, own);
    operands_.multiply(
        kSlots, kSlots, r_, along_inner(x), along_inner([&](int s, int d) { return key(s, d); }),
        [&](int i, int s, float dot) {
          weights[i * kSlots + s] = s < i + own && i < rows_ ? decay(i, s) * dot : 0.0f;
        });
  }

  template <typename X>
  __device__ void weigh_channels(const X& x, float* weights, int own) {
    for (int at = threadIdx.x; at < kSlots * kSlots; at += kBackwardThreads) weights[at] = 0.0f;
    __syncthreads();
    for (int end = kStretchSlots; end < rows_; end += kStretchSlots) {
      const int first = end - kStretchSlots;
      operands_.multiply(
          rows_ - end, kStretchSlots, r_, along_inner([&](int i, int d) {
            return scaled(x(end + i, d), decay(end + i, end - 1, d));
          }),
          along_inner([&](int s, int d) {
            return scaled(key(first + s, d), decay(end - 1, first + s, d));
          }),
          [&](int i, int s, float dot) { weights[(end + i) * kSlots + first + s] = dot; });
    }
    for (int pair = threadIdx.x / kWarp; pair < rows_ * kStretchSlots; pair += kBackwardWarps) {
      const int i = pair / kStretchSlots, s = stretch_of(i) + pair % kStretchSlots;
      if (s >= i + own) continue;
      const float weight = dot64(r_, [&](int64_t at) {
        const int d = static_cast<int>(at);
        return float2{bf16_to_f32(x(i, d)) * decay(i, s, d), bf16_to_f32(key(s, d))};
      });
      if (threadIdx.x % kWarp == 0) weights[i * kSlots + s] = weight;
    }
  }

  // u and r of the chunk's rows, as the forward has them. What products over slots read of u stays
  // an operand.
  __device__ void compute_values() {
    if (is_delta() && chunk_ > 0) read_state();
    const Operand& values = operands_.clear_w(v_, kSlots);
    for (int first = 0; first < rows_; first += kStretchSlots) {
      const int end = min(rows_, first + kStretchSlots);
      if (is_delta() && first > 0)
        operands_.multiply_by_same(
            end - first, v_, kSlots, along_inner([&](int i, int s) {
              return s < first ? f32_to_bf16(m_.of_key[(first + i) * kSlots + s]) : bf16_t{0};
            }),
            [&](int i, int e, float dot) { m_.d_value[(first + i) * v_ + e] = dot; });
      __syncthreads();
      for (int e = threadIdx.x; e < v_; e += kBackwardThreads)
        compute_stretch(e, first, end, values);
    }
  }

  // Keys read the state.
  __device__ void read_state() {
    const float* state = this->state();
    operands_.multiply(rows_, v_, r_, along_inner([&](int i, int d) {
                         return has_channels() ? grown(key(i, d), i, d) : key(i, d);
                       }),
                       along_rows([&](int e, int d) { return f32_to_bf16(state[d * v_ + e]); }),
                       [&](int i, int e, float dot) { m_.of_state[i * v_ + e] = dot; });
  }

  // Element e of values of a stretch, which depend on each other one by one.
  __device__ void compute_stretch(int e, int first, int end, const Operand& values) const {
    float u[kStretchSlots];
#pragma unroll
    for (int j = 0; j < kStretchSlots; ++j) {
      const int i = first + j;
      if (i >= end) break;
      float r = v(i)[e];
      if (is_delta()) {
        if (chunk_ > 0)
          r = __fmaf_rn(has_channels() ? -1.0f : -numbers_.growth[i], m_.of_state[i * v_ + e], r);
        if (first > 0) r = r - m_.d_value[i * v_ + e];
#pragma unroll
        for (int s = 0; s < j; ++s) r = __fmaf_rn(-m_.of_key[i * kSlots + first + s], u[s], r);
      }
      const bf16_t value = f32_to_cached_bf16(factor(i) * r);
      rest(i)[e] = r;
      value_at(i, e) = values.at(e, i) = value;
      u[j] = bf16_to_f32(value);
    }
  }

  // Behind compute_values, whose operand it reads.
  __device__ void compute_next_state() {
    const float* before = state();
    float* next = state() + r_ * v_;
    operands_.multiply_by_same(
        r_, v_, kSlots, along_rows([&](int d, int i) { return written_key(i, d); }),
        [&](int d, int e, float dot) {
          next[d * v_ + e] = __fmaf_rn(growth(kSlots - 1, d), before[d * v_ + e], dot);
        });
  }

  const RecurrenceBackwardParams& p_;
  const HeadMemory& m_;
  ChunkNumbers& numbers_;
  Operands<order> operands_;
  const int64_t begin_, end_;
  const int head_, key_head_, r_, v_, channels_;
  int64_t chunk_ = 0;
  int rows_ = 0;

 private:
  __device__ bf16_t of_key_head(const bf16_t* x, int slot, int d) const {
    const int64_t padded = round_up(r_, kLeafPad);
    return slot < rows_ ? x[(row(slot) * p_.key_heads + key_head_) * padded + d] : bf16_t{0};
  }
};

}  // namespace invar::cuda
