// Recurrences by chunk (numerics 4.4): a block has a value head of a sequence and goes through its
// rows, those of a stretch of 16 slots at once. Order hopper on tensor cores, its memory in rows;
// order portable on CUDA cores, in panels. Values of a chunk lie in shared memory with slots side
// by side, as products over slots read them.
#include "base/check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/early_grid.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/recurrent_pieces.cuh"
#include "kernels/cuda/recurrent_products.cuh"

namespace invar::cuda {

namespace {

constexpr int kSlotStride = kChunkSlots + 8;  // elements between rows of slots

// Rows [begin, end) in one stretch of one chunk, at neighbouring positions.
struct StretchRun {
  int64_t begin, end;
  int slot;  // of the first
  int32_t cell;
  __device__ int stretch() const { return slot / kStretchSlots * kStretchSlots; }
  __device__ int seen() const { return slot + static_cast<int>(end - begin); }
  // The row of the stretch's slot m, or -1.
  __device__ int64_t row(int m) const {
    const int64_t t = begin + stretch() + m - slot;
    return t >= begin && t < end ? t : -1;
  }
};

__device__ StretchRun run_at(const RowPlaces& at, int64_t begin, int64_t end) {
  int64_t last = begin + 1;
  while (last < end && at.table_of[last] == at.table_of[begin] &&
         at.positions[last] == at.positions[last - 1] + 1 &&
         at.positions[last] % kStretchSlots != 0)
    ++last;
  return {begin, last, at.slot(begin), at.cell_of(begin, at.positions[begin])};
}

// Arrays of a block in shared memory, in elements of T and then in f32.
template <typename T>
struct Room {
  __device__ __host__ Room(const RecurrentLayer& layer, void* memory)
      : x_stride(static_cast<int>(layer.padded_key()) + 8),
        values(static_cast<int>(round_up(layer.value_size, kPanelWidth))) {
    T* next = static_cast<T*>(memory);
    const auto take = [&](int count) {
      T* of = next;
      next += count;
      return of;
    };
    keys = next;  // once the rows are no longer needed
    q = take(16 * x_stride), k = take(16 * x_stride);
    decayed = take(16 * x_stride), folded = take(16 * x_stride);
    const int of_keys = static_cast<int>(round_up(layer.key_size, 16)) * kSlotStride;
    next = keys + (of_keys > 64 * x_stride ? of_keys : 64 * x_stride);
    u = take(values * kSlotStride);
    q_weights = take(16 * kSlotStride), k_weights = take(16 * kSlotStride);
    of_state = reinterpret_cast<float*>(next);
    base = of_state + 16 * values;
    own_weights = base + 16 * values;
    end = own_weights + 16 * 16;
  }
  int x_stride, values;
  T *q, *k, *decayed, *folded;  // [16][x_stride]; folded: a panel, too
  T *u, *keys;                  // [e][kSlotStride], [d][kSlotStride]
  T *q_weights, *k_weights;     // [16][kSlotStride]
  float *of_state, *base;       // [16][values]: of queries; of keys, and what values are made of
  float* own_weights;           // [16][16]: of keys in their stretch
  float* end;
};

template <Order order, typename T>
class Block {
  using Product = ChunkProduct<order, T>;
  static constexpr bool kPanels = order == Order::portable;

 public:
  __device__ Block(const RecurrenceParams& p, int head, void* shared)
      : p_(p),
        layer_(p.layer),
        head_(head),
        key_head_(head / (p.layer.heads / p.layer.key_heads)),
        room_(p.layer, shared) {}

  __device__ void compute(const StretchRun& run) {
    run_ = run;
    state_ = p_.state_of[run.begin];
    load();
    add_decays();
    __syncthreads();
    meet_state(room_.q, room_.of_state);
    if (has_keys()) meet_state(room_.k, room_.base);
    weigh_all();
    __syncthreads();
    if (has_keys()) prepare_values();
    __syncthreads();
    leave_values();
    __syncthreads();
    write_outputs();
    const int64_t last = run.end - 1;
    if (run.seen() == kChunkSlots && p_.next_state[last] >= 0) write_state(p_.next_state[last]);
    __syncthreads();
  }

 private:
  __device__ bool has_channels() const { return layer_.kind == Recurrence::channel_delta; }
  __device__ bool has_keys() const { return layer_.kind != Recurrence::state_space; }
  __device__ float* sums(int32_t cell, int slot) const {
    return layer_.sums.template at<float>(cell) + head_ * layer_.sum_elements() +
           slot * layer_.channels();
  }
  __device__ float sum(int slot, int d) const {
    return sums(run_.cell, slot)[has_channels() ? d : 0];
  }
  __device__ const T* keys() const {
    return layer_.keys.template at<T>(run_.cell) + key_head_ * layer_.key_elements();
  }
  __device__ T* values(int32_t cell) const {
    return layer_.values.template at<T>(cell) + head_ * layer_.value_elements();
  }
  __device__ float factor_of_state(int m) const {
    return has_channels() ? 1.0f : math::exp(sum(run_.stretch() + m, 0));
  }
  __device__ float v(int64_t t, int e) const {
    return p_.v[t * p_.v_stride + head_ * layer_.value_size + e];
  }

  // The rows, zeros where there is none, and the values before them.
  __device__ void load() {
    const int padded = static_cast<int>(layer_.padded_key());
    for (int at = threadIdx.x; at < 16 * padded; at += kRecurrentThreads) {
      const int m = at / padded, d = at % padded;
      const int64_t t = run_.row(m);
      const int64_t from = (t * layer_.key_heads + key_head_) * padded + d;
      room_.q[m * room_.x_stride + d] = t < 0 ? T{} : static_cast<const T*>(p_.q)[from];
      room_.k[m * room_.x_stride + d] = t < 0 ? T{} : static_cast<const T*>(p_.k)[from];
    }
    const T* u = values(run_.cell);
    for (int at = threadIdx.x; at < room_.values * kChunkSlots; at += kRecurrentThreads) {
      const int e = at % room_.values, slot = at / room_.values;
      room_.u[e * kSlotStride + slot] =
          slot < run_.slot && e < layer_.value_size ? u[layer_.value_index(slot, e)] : T{};
    }
    for (int at = threadIdx.x; at < 16 * kSlotStride; at += kRecurrentThreads)
      room_.q_weights[at] = room_.k_weights[at] = T{};
  }

  __device__ void add_decays() {
    const int channels = static_cast<int>(layer_.channels());
    for (int d = threadIdx.x; d < channels; d += kRecurrentThreads) {
      float sum = run_.slot ? sums(run_.cell, run_.slot - 1)[d] : 0.0f;
      for (int64_t t = run_.begin; t < run_.end; ++t) {
        sum = sum + p_.decays[(t * layer_.heads + head_) * channels + d];
        for (int w = p_.places.write_begin[t]; w < p_.places.write_begin[t + 1]; ++w)
          sums(p_.places.write_cell[w], p_.places.slot(t))[d] = sum;
      }
    }
  }

  // x times exp(the row's sums less those of a slot, or less nothing), rounded. Ends with a
  // barrier.
  __device__ const T* decay_rows(const T* x, int from) {
    __syncthreads();
    const int padded = static_cast<int>(layer_.padded_key());
    for (int at = threadIdx.x; at < 16 * padded; at += kRecurrentThreads) {
      const int m = at / padded, d = at % padded;
      T y{};
      if (run_.row(m) >= 0 && d < layer_.key_size) {
        const float t = sum(run_.stretch() + m, d);
        y = round_as<T>(as_f32(x[m * room_.x_stride + d]) *
                        math::exp(from < 0 ? t : t - sum(from, d)));
      }
      room_.decayed[m * room_.x_stride + d] = y;
    }
    __syncthreads();
    return room_.decayed;
  }

  __device__ void meet_state(const T* x, float* y) {
    const int stride = room_.values, inner = static_cast<int>(layer_.padded_key());
    if (state_ < 0) {
      for (int at = threadIdx.x; at < 16 * stride; at += kRecurrentThreads) y[at] = 0.0f;
      return;
    }
    const T* operand = sizeof(T) == 4
                           ? reinterpret_cast<const T*>(layer_.states.template at<float>(state_))
                           : layer_.operands.template at<T>(state_);
    if (has_channels()) x = decay_rows(x, -1);
    Product::multiply(x, room_.x_stride, operand + head_ * layer_.state_elements(), inner,
                      layer_.value_size, inner, layer_.key_size,
                      [&](int m, int e, float dot) { y[m * stride + e] = dot; });
  }

  // A weight goes where products, or what is left of a stretch, read it.
  __device__ void put_weight(bool is_key, int m, int s, float w) {
    const int stretch = run_.stretch(), slot = stretch + m;
    if (run_.row(m) < 0 || s > slot) return;
    if (!is_key)
      room_.q_weights[m * kSlotStride + s] = round_as<T>(w);
    else if (s < stretch)
      room_.k_weights[m * kSlotStride + s] = round_as<T>(w);
    else
      room_.own_weights[m * 16 + s - stretch] = w;
  }

  __device__ void weigh_all() {
    if (has_channels()) {
      for (int s = 0; s < run_.stretch(); s += kStretchSlots) weigh_earlier(s);
      return weigh_within();
    }
    const int inner = static_cast<int>(layer_.padded_key());
    for (int is_key = 0; is_key <= (has_keys() ? 1 : 0); ++is_key)
      Product::multiply(is_key ? room_.k : room_.q, room_.x_stride, keys(), inner, run_.seen(),
                        inner, layer_.key_size, [&](int m, int s, float dot) {
                          const float d = sum(run_.stretch() + m, 0) - sum(s, 0);
                          put_weight(is_key, m, s, math::exp(d) * dot);
                        });
  }

  // With channels, slots of an earlier stretch, whose keys are made ready once.
  __device__ void weigh_earlier(int stretch) {
    const int padded = static_cast<int>(layer_.padded_key()), last = stretch + kStretchSlots - 1;
    __syncthreads();
    for (int at = threadIdx.x; at < 16 * padded; at += kRecurrentThreads) {
      const int s = at / padded, d = at % padded;
      T y{};
      if (d < layer_.key_size)
        y = round_as<T>(as_f32(keys()[layer_.key_index(stretch + s, d)]) *
                        math::exp(sum(last, d) - sum(stretch + s, d)));
      const int64_t packed = sizeof(T) == 4 ? packed_index_f32(s, d, layer_.key_size)
                                            : packed_index_bf16(s, d, layer_.key_size);
      room_.folded[kPanels ? packed : s * room_.x_stride + d] = y;
    }
    for (int is_key = 0; is_key < 2; ++is_key) {
      const T* x = decay_rows(is_key ? room_.k : room_.q, last);
      Product::multiply(x, room_.x_stride, room_.folded, room_.x_stride, kStretchSlots, padded,
                        layer_.key_size,
                        [&](int m, int s, float dot) { put_weight(is_key, m, stretch + s, dot); });
    }
  }

  // With channels, the rows of the stretch among themselves: a warp has a pair.
  __device__ void weigh_within() {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, stretch = run_.stretch();
    for (int pair = warp; pair < 2 * 16 * 16; pair += kRecurrentWarps) {
      const bool is_key = pair >= 16 * 16;
      const int m = pair / 16 % 16, s = pair % 16;
      if (run_.row(m) < 0 || s > m) continue;
      const T* x = (is_key ? room_.k : room_.q) + m * room_.x_stride;
      float lanes[2] = {};
      for (int d = lane, half = 0; d < layer_.key_size; d += kWarp, half ^= 1)
        lanes[half] = __fmaf_rn(as_f32(x[d]) * math::exp(sum(stretch + m, d) - sum(stretch + s, d)),
                                as_f32(keys()[layer_.key_index(stretch + s, d)]), lanes[half]);
      const float w = halve64(lanes[0], lanes[1]);
      if (lane == 0) put_weight(is_key, m, stretch + s, w);
    }
  }

  __device__ const T* packed_values() const { return kPanels ? values(run_.cell) : room_.u; }

  // v - D y - the dot over earlier stretches.
  __device__ void prepare_values() {
    const int stretch = run_.stretch();
    const auto less = [&](int m, int e, float dot) {
      const int64_t t = run_.row(m);
      if (t < 0) return;
      float& r = room_.base[m * room_.values + e];
      r = __fmaf_rn(-factor_of_state(m), r, v(t, e)) - dot;
    };
    if (stretch > 0)
      return Product::multiply(room_.k_weights, kSlotStride, packed_values(), kSlotStride,
                               layer_.value_size, stretch, kChunkSlots, less);
    for (int at = threadIdx.x; at < 16 * layer_.value_size; at += kRecurrentThreads)
      less(at / layer_.value_size, at % layer_.value_size, 0.0f);
  }

  // A thread has an element of all values, one row after the other.
  __device__ void leave_values() {
    const int stretch = run_.stretch();
    for (int e = threadIdx.x; e < layer_.value_size; e += kRecurrentThreads) {
      T* own = room_.u + e * kSlotStride + stretch;
      for (int m = 0; m < kStretchSlots; ++m) {
        const int64_t t = run_.row(m);
        if (t < 0) continue;
        float r = has_keys() ? room_.base[m * room_.values + e] : v(t, e);
        for (int s = 0; s < m && has_keys(); ++s)
          r = __fmaf_rn(-room_.own_weights[m * 16 + s], as_f32(own[s]), r);
        r = p_.factors[t * layer_.heads + head_] * r;
        if (!isfinite(r)) p_.non_finite[t] = true;
        own[m] = keep_as<T>(r);
        for (int w = p_.places.write_begin[t]; w < p_.places.write_begin[t + 1]; ++w)
          values(p_.places.write_cell[w])[layer_.value_index(stretch + m, e)] = own[m];
      }
    }
  }

  __device__ void write_outputs() {
    Product::multiply(room_.q_weights, kSlotStride, packed_values(), kSlotStride, layer_.value_size,
                      run_.stretch() + kStretchSlots, kChunkSlots, [&](int m, int e, float dot) {
                        const int64_t t = run_.row(m);
                        if (t < 0) return;
                        float o = __fmaf_rn(factor_of_state(m),
                                            room_.of_state[m * room_.values + e], dot);
                        if (p_.skips) o = __fmaf_rn(p_.skips[head_], v(t, e), o);
                        p_.out[t * p_.out_stride + head_ * layer_.value_size + e] = o;
                      });
  }

  __device__ void write_state(int32_t cell) {
    const int size = layer_.key_size, last = kChunkSlots - 1;
    const int keys_padded = static_cast<int>(round_up(size, 16));
    for (int at = threadIdx.x; at < keys_padded * kChunkSlots; at += kRecurrentThreads) {
      const int d = at % keys_padded, s = at / keys_padded;
      T y{};
      if (d < size)
        y = round_as<T>(as_f32(keys()[layer_.key_index(s, d)]) *
                        math::exp(sum(last, d) - sum(s, d)));
      room_.keys[d * kSlotStride + s] = y;
    }
    __syncthreads();
    const int64_t elements = layer_.state_elements();
    const float* state =
        state_ < 0 ? nullptr : layer_.states.template at<float>(state_) + head_ * elements;
    float* next = layer_.states.template at<float>(cell) + head_ * elements;
    T* operand = sizeof(T) == 4 ? nullptr : layer_.operands.template at<T>(cell) + head_ * elements;
    const auto put = [&](int d, int e, float y) {
      next[layer_.state_index(d, e)] = y;
      if (operand) operand[layer_.operand_index(d, e)] = round_as<T>(y);
    };
    for (int first = 0; first < size; first += 16)
      Product::multiply(room_.keys + first * kSlotStride, kSlotStride, packed_values(), kSlotStride,
                        layer_.value_size, kChunkSlots, kChunkSlots, [&](int m, int e, float dot) {
                          const int d = first + m;
                          if (d >= size) return;
                          const float before = state ? state[layer_.state_index(d, e)] : 0.0f;
                          put(d, e, __fmaf_rn(math::exp(sum(last, d)), before, dot));
                        });
    const int padded = static_cast<int>(layer_.padded_key());
    for (int at = threadIdx.x; at < padded * room_.values; at += kRecurrentThreads)
      if (const int d = at % padded, e = at / padded; d >= size || e >= layer_.value_size)
        put(d, e, 0.0f);
  }

  const RecurrenceParams& p_;
  const RecurrentLayer& layer_;
  const int head_, key_head_;
  Room<T> room_;
  StretchRun run_;
  int32_t state_ = -1;
};

template <Order order, typename T>
__global__ __launch_bounds__(kRecurrentThreads) void recurrence_kernel(
    const __grid_constant__ RecurrenceParams p) {
  extern __shared__ __align__(16) char shared[];
  take_turn();
  const int number = static_cast<int>(blockIdx.x);
  const int head = number % p.layer.heads, sequence = number / p.layer.heads;
  Block<order, T> block(p, head, shared);
  const int64_t end = p.sequence_begin[sequence + 1];
  for (int64_t t = p.sequence_begin[sequence]; t < end;) {
    const StretchRun run = run_at(p.places, t, end);
    block.compute(run);
    t = run.end;
  }
}

template <Order order, typename T>
void launch_recurrence(const RecurrenceParams& p, const Execution& on) {
  const auto bytes = reinterpret_cast<uintptr_t>(Room<T>(p.layer, nullptr).end);
  launch("a recurrence", recurrence_kernel<order, T>,
         {.blocks = p.sequences * p.layer.heads,
          .threads = kRecurrentThreads,
          .shared_bytes = static_cast<int>(bytes),
          .early = true},
         on, p);
}

}  // namespace

template <Order order>
void recurrence(const RecurrenceParams& p, const Execution& on) {
  if (p.places.rows == 0) return;
  CHECK(p.layer.layout == (order == Order::hopper ? CacheLayout::rows : CacheLayout::panels),
        "the layout of a recurrent layer on a GPU");
  CHECK(p.layer.key_size <= kMostStateSize && p.layer.value_size <= kMostStateSize,
        "a state beyond what the kernels hold");
  if constexpr (order == Order::portable)
    if (p.layer.is_f32()) return launch_recurrence<order, float>(p, on);
  CHECK(!p.layer.is_f32(), "the order hopper is defined for bf16");
  if (order == Order::portable || !has_own_kernels(p))
    return launch_recurrence<order, bf16_t>(p, on);
  recur_in_pieces(p, on);
}
template void recurrence<Order::portable>(const RecurrenceParams&, const Execution&);
template void recurrence<Order::hopper>(const RecurrenceParams&, const Execution&);

}  // namespace invar::cuda
