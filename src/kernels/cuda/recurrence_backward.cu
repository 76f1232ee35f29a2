// The backward of recurrences (numerics 9): a block has a value head of a sequence, and memory for
// it; those that there is memory for are computed at a time, then added to their key heads
// (kernels/reference/recurrence_backward.cc on a GPU).
#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/recurrence_backward_channels.cuh"
#include "kernels/cuda/states_backward.h"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

template <Order order>
class HeadOfSequence : private ChannelGradients<order> {
  using Channels = ChannelGradients<order>;

 public:
  using Channels::Channels;

  __device__ void run() {
    const int64_t chunks = (this->end_ - this->begin_ + kSlots - 1) / kSlots;
    for (int at = threadIdx.x; at < r_ * v_; at += kBackwardThreads) m_.states[at] = 0.0f;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      this->enter(chunk);
      this->compute_values();
      if (chunk + 1 < chunks) this->compute_next_state();
    }
    for (int64_t chunk = chunks; chunk-- > 0;) {
      this->enter(chunk);
      has_next_ = chunk + 1 < chunks;
      go_back();
    }
  }

 private:
  using Channels::d_out, Channels::decay, Channels::dq, Channels::factor, Channels::grown,
      Channels::growth, Channels::has_channels, Channels::is_delta, Channels::key, Channels::m_,
      Channels::numbers_, Channels::operands_, Channels::p_, Channels::query, Channels::r_,
      Channels::row, Channels::rows_, Channels::until, Channels::v_, Channels::value;

  __device__ void go_back() {
    this->weigh([this](int i, int d) { return query(i, d); }, m_.of_query, 1);
    operands_.multiply(kSlots, kSlots, v_, along_inner(outputs()), along_inner(values()),
                       [this](int i, int s, float dot) { m_.d_of_query[i * kSlots + s] = dot; });
    gradients_of_values();
    gradients_of_rests();
    gradients_of_keys();
    gradients_of_decays();
    gradient_of_state();
    leave_keys();
  }

  // Elements of operands.
  __device__ auto outputs() const {
    return [this](int i, int e) { return d_out(i, e); };
  }
  __device__ auto values() const {
    return [this](int i, int e) { return value(i, e); };
  }
  __device__ auto rests() const {
    return [this](int i, int e) { return d_rest(i, e); };
  }
  __device__ bf16_t d_rest(int i, int e) const {
    return i < rows_ ? m_.d_rest[i * v_ + e] : bf16_t{0};
  }
  // Channels of a state, from its values' elements.
  __device__ auto channels_of(const float* state) const {
    return [v = v_, state](int d, int e) { return f32_to_bf16(state[d * v + e]); };
  }

  // u's gradient: outputs and the next state read it.
  __device__ void gradients_of_values() {
    operands_.multiply(rows_, v_, kSlots, along_rows([this](int s, int i) {
                         return f32_to_bf16(m_.of_query[i * kSlots + s]);
                       }),
                       along_rows([this](int e, int i) { return d_out(i, e); }),
                       [this](int s, int e, float dot) { m_.d_value[s * v_ + e] = dot; });
    if (!has_next_) return;
    operands_.multiply(
        rows_, v_, r_, along_inner([this](int i, int d) { return this->written_key(i, d); }),
        along_rows([this](int e, int d) { return f32_to_bf16(m_.d_state[d * v_ + e]); }),
        [this](int s, int e, float dot) {
          float& d = m_.d_value[s * v_ + e];
          d = d + dot;
        });
  }

  // r's gradient, the last row first: later rows' values read u.
  __device__ void gradients_of_rests() {
    const Operand& rests = operands_.clear_w(v_, kSlots);
    for (int first = this->stretch_of(rows_ - 1); first >= 0; first -= kStretchSlots) {
      const int end = min(rows_, first + kStretchSlots);
      if (is_delta() && end < rows_)  // rows of this stretch are still +0
        operands_.multiply_by_same(
            end - first, v_, kSlots, along_rows([&](int i, int t) {
              return f32_to_bf16(m_.of_key[t * kSlots + first + i]);
            }),
            [&](int i, int e, float dot) { m_.of_state[(first + i) * v_ + e] = dot; });
      __syncthreads();
      for (int e = threadIdx.x; e < v_; e += kBackwardThreads)
        gradients_of_stretch(e, first, end, rests);
    }
    __syncthreads();
    for (int i = threadIdx.x / kWarp; i < rows_; i += kBackwardWarps) gradients_of_factors(i);
  }

  // Element e of the rows of a stretch.
  __device__ void gradients_of_stretch(int e, int first, int end, const Operand& rests) const {
    float dr[kStretchSlots];
    const float skip = p_.skips ? p_.skips[this->head_] : 0.0f;
#pragma unroll
    for (int j = kStretchSlots - 1; j >= 0; --j) {
      const int i = first + j;
      if (i >= end) continue;
      float du = m_.d_value[i * v_ + e];
      if (is_delta()) {
        if (end < rows_) du = du - m_.of_state[i * v_ + e];
#pragma unroll
        for (int t = kStretchSlots - 1; t > j; --t)
          if (first + t < end) du = __fmaf_rn(-m_.of_key[(first + t) * kSlots + i], dr[t], du);
      }
      dr[j] = factor(i) * du;
      m_.d_value[i * v_ + e] = du;
      m_.d_rest[i * v_ + e] = rests.at(e, i) = f32_to_bf16(dr[j]);
      p_.dv[row(i) * p_.d_stride + this->head_ * v_ + e] =
          p_.skips ? __fmaf_rn(skip, bf16_to_f32(d_out(i, e)), dr[j]) : dr[j];
    }
  }

  // By a warp.
  __device__ void gradients_of_factors(int i) const {
    const int64_t at = row(i) * p_.heads + this->head_;
    const float *du = m_.d_value + i * v_, *r = this->rest(i), *v = this->v(i);
    const float factor = dot64(v_, [&](int64_t e) { return float2{du[e], r[e]}; });
    if (threadIdx.x % kWarp == 0) p_.d_factors[at] = factor;
    if (!p_.d_skips) return;
    const float skip = dot64(v_, [&](int64_t e) {
      return float2{bf16_to_f32(d_out(i, static_cast<int>(e))), v[e]};
    });
    if (threadIdx.x % kWarp == 0) p_.d_skips[at] = skip;
  }

  __device__ void gradients_of_keys() {
    if (is_delta())
      operands_.multiply(kSlots, kSlots, v_, along_inner(rests()), along_inner(values()),
                         [this](int i, int s, float dot) { m_.d_of_key[i * kSlots + s] = -dot; });
    if (has_channels())
      this->gradients_in_channels();
    else
      gradients_in_chunk();
    if (this->chunk_ > 0) gradients_at_state();
    if (!has_next_) return;
    operands_.multiply(
        rows_, r_, v_, along_inner(values()), along_inner(channels_of(m_.d_state)),
        [this](int i, int d, float dot) { m_.written[i * r_ + d] = until(i, d) * dot; });
  }

  // From the gradient of a weight to that of the dot in it.
  __device__ bf16_t of_dot(const float* d, int own, int i, int s) const {
    return s < i + own && i < rows_ ? f32_to_bf16(d[i * kSlots + s] * decay(i, s)) : bf16_t{0};
  }

  // Queries and keys read the chunk's keys.
  __device__ void gradients_in_chunk() {
    const auto query_dot = [this](int i, int s) { return of_dot(m_.d_of_query, 1, i, s); };
    const auto key_dot = [this](int i, int s) { return of_dot(m_.d_of_key, 0, i, s); };
    const auto turned = [](const auto& of) {
      return along_rows([=](int s, int i) { return of(i, s); });
    };
    operands_.multiply(rows_, r_, kSlots, along_inner(query_dot),
                       along_rows([this](int d, int s) { return key(s, d); }),
                       [this](int i, int d, float dot) { dq()[i * r_ + d] = dot; });
    if (is_delta()) {
      operands_.multiply_by_same(rows_, r_, kSlots, along_inner(key_dot),
                                 [this](int i, int d, float dot) { m_.reader[i * r_ + d] = dot; });
      operands_.multiply_by_same(rows_, r_, kSlots, turned(key_dot),
                                 [this](int s, int d, float dot) { m_.read[s * r_ + d] = dot; });
    }
    operands_.multiply(rows_, r_, kSlots, turned(query_dot),
                       along_rows([this](int d, int i) { return query(i, d); }),
                       [this](int s, int d, float dot) {
                         float& read = m_.read[s * r_ + d];
                         read = is_delta() ? dot + read : dot;
                       });
  }

  // They read the state.
  __device__ void gradients_at_state() {
    operands_.multiply(rows_, r_, v_, along_inner(outputs()),
                       along_inner(channels_of(this->state())), [this](int i, int d, float dot) {
                         float& y = dq()[i * r_ + d];
                         y = y + growth(i, d) * dot;
                       });
    if (!is_delta()) return;
    operands_.multiply_by_same(rows_, r_, v_, along_inner(rests()),
                               [this](int i, int d, float dot) {
                                 float& y = m_.reader[i * r_ + d];
                                 y = y + -growth(i, d) * dot;
                               });
  }

  // A decay counts in all sums from its row on, and in what is written to the state before it.
  __device__ void gradients_of_decays() {
    __syncthreads();
    const int warp = threadIdx.x / kWarp;
    for (int d = warp; d < r_ && has_next_; d += kBackwardWarps) {
      const float *now = this->state() + d * v_, *next = m_.d_state + d * v_;
      const float sum = dot64(v_, [&](int64_t e) { return float2{now[e], next[e]}; });
      if (threadIdx.x % kWarp == 0) numbers_.of_channels[d] = sum;
    }
    for (int i = warp; i < rows_ && !has_channels(); i += kBackwardWarps) gradients_of_row(i);
    __syncthreads();
    if (has_channels()) return this->gradients_of_channels(has_next_);
    if (warp == 0) add_gradients_of_decays();
  }

  // A warp makes the gradients of the sum of a row's decays, which multiplies some numbers and
  // divides others, and of what the row writes.
  __device__ void gradients_of_row(int i) const {
    float lanes[2] = {};
    for (int d = threadIdx.x % kWarp, half = 0; d < r_; d += kWarp, half ^= 1) {
      const float q = bf16_to_f32(query(i, d)), k = bf16_to_f32(key(i, d));
      const int at = i * r_ + d;
      float sum = __fmaf_rn(q, dq()[at], lanes[half]);
      if (is_delta()) sum = __fmaf_rn(k, m_.reader[at], sum);
      lanes[half] = __fmaf_rn(-k, m_.read[at], sum);
    }
    const float of_sum = halve64(lanes[0], lanes[1]);
    if (threadIdx.x % kWarp == 0) numbers_.of_sums[i] = of_sum;
    if (!has_next_) return;
    const float of_writing = dot64(r_, [&](int64_t d) {
      return float2{bf16_to_f32(key(i, static_cast<int>(d))), m_.written[i * r_ + d]};
    });
    if (threadIdx.x % kWarp == 0) numbers_.of_writing[i] = of_writing;
  }

  // By a warp, whose first lane goes through the rows.
  __device__ void add_gradients_of_decays() const {
    const float all = sum64(r_, [&](int64_t d) { return has_next_ ? numbers_.of_channels[d] : 0; });
    if (threadIdx.x != 0) return;
    float after = 0.0f, before = has_next_ ? numbers_.growth[kSlots - 1] * all : 0.0f;
    for (int i = rows_; i-- > 0;) numbers_.of_sums[i] = after = numbers_.of_sums[i] + after;
    for (int i = 0; i < rows_; ++i) {
      const float d = numbers_.of_sums[i];
      p_.d_decays[row(i) * p_.heads + this->head_] = has_next_ ? d + before : d;
      if (has_next_) before = before + numbers_.of_writing[i];
    }
  }

  // From the gradient of the state behind the chunk to that of the state before it.
  __device__ void gradient_of_state() {
    if (this->chunk_ == 0) return;
    const auto leave = [this](int d, int e, float added) {
      float& to = m_.d_state[d * v_ + e];
      to = has_next_ ? __fmaf_rn(growth(kSlots - 1, d), to, added) : added;
    };
    operands_.multiply(
        r_, v_, kSlots, along_rows([this](int d, int i) { return grown(query(i, d), i, d); }),
        along_rows([this](int e, int i) { return d_out(i, e); }), [&](int d, int e, float dot) {
          if (is_delta())
            m_.d_of_queries[d * v_ + e] = dot;
          else
            leave(d, e, dot);
        });
    if (!is_delta()) return;
    operands_.multiply(
        r_, v_, kSlots, along_rows([this](int d, int i) { return grown(key(i, d), i, d); }),
        along_rows([this](int e, int i) { return d_rest(i, e); }),
        [&](int d, int e, float dot) { leave(d, e, m_.d_of_queries[d * v_ + e] - dot); });
  }

  __device__ void leave_keys() const {
    float* dk = m_.dk + this->chunk_ * kSlots * r_;
    for (int at = threadIdx.x; at < rows_ * r_; at += kBackwardThreads) {
      float k = is_delta() ? m_.reader[at] + m_.read[at] : m_.read[at];
      if (has_next_) k = k + m_.written[at];
      dk[at] = k;
    }
  }

  bool has_next_ = false;
};

// Heads [first, first + count) of all sequences' in turn, each with memory of its own.
struct HeadsAtOnce {
  RecurrenceBackwardParams p;
  int64_t first, count, bytes;
  __host__ __device__ HeadMemory memory(int64_t head) const {
    return {p.scratch + (head - first) * bytes, p.max_positions, p.key_size, p.value_size};
  }
};

template <Order order>
__global__ __launch_bounds__(kBackwardThreads) void heads_kernel(
    const __grid_constant__ HeadsAtOnce heads) {
  extern __shared__ __align__(16) bf16_t operands[];
  __shared__ ChunkNumbers numbers;
  const RecurrenceBackwardParams& p = heads.p;
  const int64_t own = heads.first + blockIdx.x;
  const HeadMemory memory = heads.memory(own);
  HeadOfSequence<order> head(
      p, static_cast<int>(own / p.heads), static_cast<int>(own % p.heads), memory,
      {operands, Operands<order>::x_elements(kSlots, p.key_size, p.value_size)}, numbers);
  head.run();
}

// Value heads of a key head of a sequence, ascending, from +0 or what the heads before left. Some
// blocks have a key head together.
constexpr int kBlocksOfKeyHead = 8;

__global__ __launch_bounds__(kBackwardThreads) void key_heads_kernel(
    const __grid_constant__ HeadsAtOnce heads) {
  const RecurrenceBackwardParams& p = heads.p;
  const int64_t each = p.heads / p.key_heads;
  const int64_t own = heads.first / each + blockIdx.x / kBlocksOfKeyHead;
  const int64_t first = max(heads.first, own * each);
  const int64_t end = min(heads.first + heads.count, (own + 1) * each);
  const int64_t sequence = own / p.key_heads, row = p.sequence_begin[sequence];
  const int64_t count = (p.sequence_begin[sequence + 1] - row) * p.key_size;
  for (int64_t at = blockIdx.x % kBlocksOfKeyHead * kBackwardThreads + threadIdx.x; at < count;
       at += kBlocksOfKeyHead * kBackwardThreads) {
    const int64_t to =
        (row + at / p.key_size) * p.d_stride + own % p.key_heads * p.key_size + at % p.key_size;
    const bool is_begun = first > own * each;
    float dq = is_begun ? p.dq[to] : 0.0f, dk = is_begun ? p.dk[to] : 0.0f;
    for (int64_t head = first; head < end; ++head) {
      const HeadMemory memory = heads.memory(head);
      dq = dq + memory.dq[at];
      dk = dk + memory.dk[at];
    }
    p.dq[to] = dq;
    p.dk[to] = dk;
  }
}

// So many heads have memory: what all multiprocessors compute at a time, or of long sequences
// fewer.
constexpr int64_t kMostHeads = 264, kFewestHeads = 16, kMemory = int64_t{4} << 30;

int64_t bytes_of_head(int64_t max_positions, int64_t key_size, int64_t value_size) {
  return HeadMemory(nullptr, max_positions, key_size, value_size).bytes;
}

template <Order order>
void launch_heads(const HeadsAtOnce& heads, const Execution& on) {
  const int r = heads.p.key_size, v = heads.p.value_size;
  const int elements =
      Operands<order>::x_elements(kSlots, r, v) + Operands<order>::w_elements(kSlots, r, v);
  launch("a recurrence's backward", heads_kernel<order>,
         {static_cast<int>(heads.count), kBackwardThreads,
          elements * static_cast<int>(sizeof(bf16_t))},
         on, heads);
  const int64_t each = heads.p.heads / heads.p.key_heads;
  const int64_t key_heads = (heads.first + heads.count - 1) / each - heads.first / each + 1;
  launch("gradients of key heads", key_heads_kernel,
         {static_cast<int>(key_heads) * kBlocksOfKeyHead, kBackwardThreads, 0}, on, heads);
}

}  // namespace

int64_t recurrence_backward_scratch(int64_t max_positions, int64_t key_size, int64_t value_size) {
  const int64_t bytes = bytes_of_head(max_positions, key_size, value_size);
  return std::clamp(kMemory / bytes, kFewestHeads, kMostHeads) * bytes;
}

template <Order order>
void recurrence_backward(const RecurrenceBackwardParams& p, const Execution& on) {
  CHECK(p.key_size <= kMostStateSize && p.value_size <= kMostStateSize,
        "a state beyond what the kernels hold");
  const int64_t bytes = bytes_of_head(p.max_positions, p.key_size, p.value_size);
  const int64_t at_once = std::min(kMostHeads, p.scratch_stride / bytes);
  CHECK(at_once > 0, "memory for a head");
  const int64_t all = int64_t{p.sequences} * p.heads;
  for (int64_t first = 0; first < all; first += at_once)
    launch_heads<order>({p, first, std::min(at_once, all - first), bytes}, on);
}
template void recurrence_backward<Order::portable>(const RecurrenceBackwardParams&,
                                                   const Execution&);
template void recurrence_backward<Order::hopper>(const RecurrenceBackwardParams&, const Execution&);

}  // namespace invar::cuda
