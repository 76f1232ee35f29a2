// A few rows of each sequence in recurrent layers, order hopper: a block has some heads of a
// sequence and goes through its rows. A warp has 32 elements of the values. Whatever a row reads is
// asked for before anything is computed; queries and keys are two columns of one product.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/recurrent_pieces.cuh"
#include "kernels/cuda/recurrent_places.cuh"
#include "kernels/cuda/recurrent_products.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kSteps = kPieceKey / 16;
constexpr int kMostWarps = kMostStateSize / kPieceValues;
constexpr int kFoldedStride = kChunkSlots + 8;  // so that lanes read different banks

struct Shared {
  float sums[kChunkSlots];
  alignas(16) bf16_t of_query[kChunkSlots], of_key[kChunkSlots];  // weights at slots
  float own[kStretchSlots];                                       // of the key in its stretch
  alignas(16) bf16_t folded[kPieceKey * kFoldedStride];  // keys, decayed as far as the boundary
};

// Elements of the state, [e][d], that a lane has: tile a has rows 4 i + 2 a and the next one.
struct StateTile {
  StepOutputs steps[kSteps];
};
// Values of a stretch: of elements 4 i ... of a lane, at slots 2 j, 2 j + 1, 2 j + 8, 2 j + 9.
struct ValueWords {
  uint2 slots[4];
  __device__ StepOutputs tile(int a) const {
    const auto pairs = [&](int n, uint32_t halves) {
      return a ? __byte_perm(slots[n].y, slots[n + 1].y, halves)
               : __byte_perm(slots[n].x, slots[n + 1].x, halves);
    };
    return {{pairs(0, 0x5410), pairs(0, 0x7632), pairs(2, 0x5410), pairs(2, 0x7632)}};
  }
};

template <bool kHasKeys>
class ShortRow {
 public:
  __device__ ShortRow(const RecurrenceParams& p, Shared& shared, int head, const RowPlace& at)
      : p_(p),
        layer_(p.layer),
        shared_(shared),
        head_(head),
        key_head_(head / (p.layer.heads / p.layer.key_heads)),
        at_(at),
        t_(at.t),
        slot_(at.position % kChunkSlots),
        stretch_(slot_ / kStretchSlots),
        state_(at.state),
        cell_(at.cell),
        lane_(threadIdx.x % kWarp),
        warp_(threadIdx.x / kWarp),
        i_(lane_ / 4),
        j_(lane_ % 4),
        first_(warp_ * kPieceValues) {}

  // Brings into the L2 cache what compute() will read.
  __device__ void prefetch() const {
    if (threadIdx.x != 0) return;
    const int slots = (stretch_ + 1) * kStretchSlots;
    if (state_ >= 0)
      prefetch_bytes(layer_.operands.template at<bf16_t>(state_) + head_ * layer_.state_elements(),
                     static_cast<uint32_t>(layer_.state_elements() * sizeof(bf16_t)));
    prefetch_bytes(values(cell_), static_cast<uint32_t>(slots * layer_.value_size * 2));
    prefetch_bytes(keys(), static_cast<uint32_t>(slots * kPieceKey * 2));
  }

  __device__ void compute() {
    const HeadNumbers own_numbers = load_numbers();
    StateTile state[2];
    ValueWords u[kStretches];
    StepRows x[kSteps];
    StepOutputs slots[kSteps];
    load_state(state);
    load_rows(x);
    if (warp_ <= stretch_) load_slots(warp_, slots);
#pragma unroll
    for (int s = 0; s < kStretches; ++s)
      if (s <= stretch_) u[s] = load_values(s);
    bf16_t own[kStretchSlots];  // of the lane's element, in the stretch
    const bf16_t* of_stretch =
        values(cell_) + value_index(layer_, stretch_ * kStretchSlots, first_ + lane_);
#pragma unroll
    for (int m = 0; m < kStretchSlots - 1; ++m)
      if (kHasKeys && m < slot_ % kStretchSlots) own[m] = of_stretch[m * layer_.value_size];
    float v[4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      v[e] = p_.v[t_ * p_.v_stride + head_ * layer_.value_size + first_ + 4 * i_ + e];

    const float sum = add_decay(own_numbers);
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    for (int s = warp_; s <= stretch_; s += warps) {
      if (s != warp_) load_slots(s, slots);
      weigh(s, slots, x, sum);
    }
    float of_state[2][4] = {}, dots[2][4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int a = 0; a < 2; ++a) step(of_state[a], state[a].steps[s], x[s]);
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kStretches - 1; ++s)
      if (s < stretch_) add_values(u[s], s, dots);

    const float decay = math::exp(sum);
    const uint32_t value = make_value(of_state, dots, v, own, decay, own_numbers.factor);
    ValueWords last{};
#pragma unroll
    for (int s = 0; s < kStretches; ++s)
      if (s == stretch_) last = u[s];
    put_value(last, value);
    add_values(last, stretch_, dots);
    write_output(of_state, dots, v, decay);
    if (slot_ == kChunkSlots - 1 && p_.next_state[t_] >= 0) move_state(p_.next_state[t_], decay);
  }

 private:
  __device__ float* sums(int32_t cell) const {
    return layer_.sums.template at<float>(cell) + head_ * layer_.sum_elements();
  }
  __device__ bf16_t* values(int32_t cell) const {
    return layer_.values.template at<bf16_t>(cell) + head_ * layer_.value_elements();
  }
  __device__ const bf16_t* keys() const {
    return layer_.keys.template at<bf16_t>(cell_) + key_head_ * layer_.key_elements();
  }

  // Column 0 is the key, column 1 the query.
  __device__ void load_rows(StepRows (&x)[kSteps]) const {
    const int64_t at = (t_ * layer_.key_heads + key_head_) * kPieceKey;
    const bf16_t* row = static_cast<const bf16_t*>(i_ == 0 ? p_.k : p_.q) + at;
    const bool is_there = i_ == 1 || (kHasKeys && i_ == 0);
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
      x[s] = is_there ? load_row(reinterpret_cast<const uint32_t*>(row), s, lane_) : StepRows{};
  }
  __device__ void load_state(StateTile (&state)[2]) const {
    const bf16_t* of_head =
        state_ < 0 ? nullptr
                   : layer_.operands.template at<bf16_t>(state_) + head_ * layer_.state_elements();
#pragma unroll
    for (int a = 0; a < 2; ++a)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const bf16_t* row = of_head + (first_ + 4 * i_ + 2 * a + r) * kPieceKey;
          const StepRows pairs =
              of_head ? load_row(reinterpret_cast<const uint32_t*>(row), s, lane_) : StepRows{};
          state[a].steps[s].a[r] = pairs.b[0], state[a].steps[s].a[2 + r] = pairs.b[1];
        }
  }
  __device__ ValueWords load_values(int stretch) const {
    ValueWords u;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int slot = stretch * kStretchSlots + n / 2 * 8 + 2 * j_ + n % 2;
      u.slots[n] = *reinterpret_cast<const uint2*>(values(cell_) +
                                                   value_index(layer_, slot, first_ + 4 * i_));
    }
    return u;
  }

  // Numbers of a head: the sum of decays before this row and at the thread's slot, the row's decay
  // and factor.
  struct HeadNumbers {
    float before, of_slot, decay, factor;
  };
  __device__ HeadNumbers load_numbers() const {
    const float* of = sums(cell_);
    const int s = static_cast<int>(threadIdx.x);
    const int64_t at = t_ * layer_.heads + head_;
    return {slot_ ? of[slot_ - 1] : 0.0f, s < slot_ ? of[s] : 0.0f, p_.decays[at], p_.factors[at]};
  }
  // The row's sum of decays; those of its chunk are in shared memory then. Ends with a barrier.
  __device__ float add_decay(const HeadNumbers& own) {
    const int s = static_cast<int>(threadIdx.x);
    if (s < slot_) shared_.sums[s] = own.of_slot;
    for (int more = s + static_cast<int>(blockDim.x); more < slot_; more += blockDim.x)
      shared_.sums[more] = sums(cell_)[more];
    const float sum = own.before + own.decay;
    if (s == 0) {
      shared_.sums[slot_] = sum;
      at_.each_cell(p_, [&](int32_t cell) { sums(cell)[slot_] = sum; });
    }
    __syncthreads();
    return sum;
  }

  __device__ void load_slots(int stretch, StepOutputs (&slots)[kSteps]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bf16_t* row = keys() + (stretch * kStretchSlots + 2 * i_ + r) * kPieceKey;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const StepRows pairs = load_row(reinterpret_cast<const uint32_t*>(row), s, lane_);
        slots[s].a[r] = pairs.b[0], slots[s].a[2 + r] = pairs.b[1];
      }
    }
  }
  // Weighs the row at the slots of a stretch.
  __device__ void weigh(int stretch, const StepOutputs (&slots)[kSteps],
                        const StepRows (&x)[kSteps], float sum) const {
    float dots[4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) step(dots, slots[s], x[s]);
    if (j_ != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int s = stretch * kStretchSlots + 2 * i_ + r;
      const float decay = s <= slot_ ? math::exp(sum - shared_.sums[s]) : 0.0f;
      const float of_key = decay * (dots[2 * r] + 0.0f);
      shared_.of_query[s] = s <= slot_ ? f32_to_bf16(decay * (dots[2 * r + 1] + 0.0f)) : bf16_t{};
      shared_.of_key[s] = f32_to_bf16(of_key);
      if (stretch == stretch_) shared_.own[s % kStretchSlots] = of_key;
    }
  }

  // One step over the values of a stretch: with the key's weights and with the query's.
  __device__ void add_values(const ValueWords& u, int stretch, float (&dots)[2][4]) const {
    const uint32_t* words =
        reinterpret_cast<const uint32_t*>(i_ == 0 ? shared_.of_key : shared_.of_query) +
        stretch * 8 + j_;
    StepRows weights = {};
    if (i_ < 2) weights = {{words[0], words[4]}};
#pragma unroll
    for (int a = 0; a < 2; ++a) step(dots[a], u.tile(a), weights);
  }

  // The value of the lane's element, which goes to the row's cells.
  __device__ bf16_t make_value(const float (&of_state)[2][4], const float (&dots)[2][4],
                               const float (&v)[4], const bf16_t (&own)[kStretchSlots], float decay,
                               float factor) const {
    float r = 0.0f;
#pragma unroll
    for (int e = 0; e < 4; ++e) {  // those of four lanes, which column 0's lane has
      const float mine = kHasKeys ? __fmaf_rn(-decay, of_state[e / 2][e % 2 * 2], v[e]) -
                                        (dots[e / 2][e % 2 * 2] + 0.0f)
                                  : v[e];
      const float theirs = __shfl_sync(kAllLanes, mine, lane_ & ~3);
      if (lane_ % 4 == e) r = theirs;
    }
#pragma unroll
    for (int m = 0; m < kStretchSlots - 1; ++m)
      if (kHasKeys && m < slot_ % kStretchSlots)
        r = __fmaf_rn(-shared_.own[m], bf16_to_f32(own[m]), r);
    r = factor * r;
    if (!isfinite(r)) p_.non_finite[t_] = true;
    const bf16_t value = f32_to_cached_bf16(r);
    at_.each_cell(p_, [&](int32_t cell) {
      values(cell)[value_index(layer_, slot_, first_ + lane_)] = value;
    });
    return value;
  }

  // The row's values among those of its stretch; the lane has `value`.
  __device__ void put_value(ValueWords& u, uint32_t value) const {
    uint32_t of_lanes[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) of_lanes[e] = __shfl_sync(kAllLanes, value, 4 * i_ + e);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (slot_ % kStretchSlots == n / 2 * 8 + 2 * j_ + n % 2)
        u.slots[n] = {of_lanes[0] | of_lanes[1] << 16, of_lanes[2] | of_lanes[3] << 16};
  }

  // Column 1 is the query's.
  __device__ void write_output(const float (&of_state)[2][4], const float (&dots)[2][4],
                               const float (&v)[4], float decay) const {
    if (j_ != 0) return;
    float o[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int k = e % 2 * 2 + 1;
      o[e] = __fmaf_rn(decay, of_state[e / 2][k], dots[e / 2][k] + 0.0f);
      if (p_.skips) o[e] = __fmaf_rn(p_.skips[head_], v[e], o[e]);
    }
    float* out = p_.out + t_ * p_.out_stride + head_ * layer_.value_size + first_ + 4 * i_;
#pragma unroll
    for (int e = 0; e < 4; ++e) out[e] = o[e];
  }

  // Behind a chunk's last slot: the warp's elements of the next state.
  __device__ void move_state(int32_t cell, float decay) {
    for (int at = threadIdx.x; at < kChunkSlots * kPieceKey / 2; at += blockDim.x) {
      const int s = at / (kPieceKey / 2), d = at % (kPieceKey / 2) * 2;
      const float folds = math::exp(shared_.sums[kChunkSlots - 1] - shared_.sums[s]);
      const uint32_t two = *reinterpret_cast<const uint32_t*>(keys() + s * kPieceKey + d);
      shared_.folded[d * kFoldedStride + s] = f32_to_bf16(__uint_as_float(two << 16) * folds);
      shared_.folded[(d + 1) * kFoldedStride + s] =
          f32_to_bf16(__uint_as_float(two & 0xffff0000) * folds);
    }
    __syncthreads();
    ValueWords u[kStretches];
#pragma unroll
    for (int s = 0; s < kStretches; ++s) u[s] = load_values(s);
    const int64_t of_head = head_ * layer_.state_elements();
    const float* before = state_ < 0 ? nullptr : layer_.states.template at<float>(state_) + of_head;
    float* next = layer_.states.template at<float>(cell) + of_head;
    bf16_t* operand = layer_.operands.template at<bf16_t>(cell) + of_head;
#pragma unroll 4
    for (int tile = 0; tile < kPieceKey / 8; ++tile) {
      float dots[2][4] = {};
      const uint32_t* row =
          reinterpret_cast<const uint32_t*>(shared_.folded + (8 * tile + i_) * kFoldedStride) + j_;
#pragma unroll
      for (int s = 0; s < kStretches; ++s)
#pragma unroll
        for (int a = 0; a < 2; ++a)
          step(dots[a], u[s].tile(a), StepRows{{row[s * 8], row[s * 8 + 4]}});
#pragma unroll
      for (int a = 0; a < 2; ++a)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int64_t at = state_index(8 * tile + 2 * j_, first_ + 4 * i_ + 2 * a + r);
          const float2 old = before ? *reinterpret_cast<const float2*>(before + at) : float2{};
          const float2 y{__fmaf_rn(decay, old.x, dots[a][2 * r] + 0.0f),
                         __fmaf_rn(decay, old.y, dots[a][2 * r + 1] + 0.0f)};
          *reinterpret_cast<float2*>(next + at) = y;
          *reinterpret_cast<uint32_t*>(operand + at) =
              f32_to_bf16(y.x) | static_cast<uint32_t>(f32_to_bf16(y.y)) << 16;
        }
    }
  }

  const RecurrenceParams& p_;
  const RecurrentLayer& layer_;
  Shared& shared_;
  const int head_, key_head_;
  const RowPlace& at_;
  const int64_t t_;
  const int slot_, stretch_;
  const int32_t state_, cell_;
  const int lane_, warp_, i_, j_, first_;
};

// With up to four warps two blocks fit a multiprocessor, which hide each other's waits.
template <bool kHasKeys, bool kIsWide>
__global__ __launch_bounds__(
    kIsWide ? kMostWarps* kWarp : 4 * kWarp,
    kIsWide ? 1 : 2) void short_rows_kernel(const __grid_constant__ RecurrenceParams p,
                                            int heads_of_block) {
  __shared__ Shared shared;
  const int groups = p.layer.heads / heads_of_block;
  const int first = static_cast<int>(blockIdx.x) % groups * heads_of_block;
  const SequenceRows rows(p, static_cast<int>(blockIdx.x) / groups);
  let_next_kernel_start();
  if (!rows.is_long && rows.first < rows.end) {
    const RowPlace at(p, rows.first);
    ShortRow<kHasKeys>(p, shared, first, at).prefetch();
  }
  wait_for_kernels_before();
  if (rows.is_long) return;
  for (int64_t t = rows.first; t < rows.end; ++t) {
    const RowPlace at(p, t);
    for (int head = first; head < first + heads_of_block; ++head) {
      if (head + 1 < first + heads_of_block) ShortRow<kHasKeys>(p, shared, head + 1, at).prefetch();
      ShortRow<kHasKeys>(p, shared, head, at).compute();
      __syncthreads();  // what this row has left is there, and shared memory is free
    }
  }
}

// As many heads of a sequence for a block as leave every multiprocessor two of them.
int heads_of_block(const RecurrenceParams& p, const Execution& on) {
  int heads = 1;
  const int64_t all = int64_t{p.sequences} * p.layer.heads;
  while (p.layer.heads % (2 * heads) == 0 && all / (2 * heads) >= 2 * gpu_of(on).multiprocessors())
    heads *= 2;
  return heads;
}

}  // namespace

void recur_short_rows(const RecurrenceParams& p, const Execution& on) {
  const bool has_keys = p.layer.kind == Recurrence::delta;
  const int warps = p.layer.value_size / kPieceValues, each = heads_of_block(p, on);
  const auto kernel =
      warps > 4 ? (has_keys ? short_rows_kernel<true, true> : short_rows_kernel<false, true>)
                : (has_keys ? short_rows_kernel<true, false> : short_rows_kernel<false, false>);
  launch("a recurrence of few rows", kernel,
         {.blocks = p.sequences * (p.layer.heads / each),
          .threads = warps * kWarp,
          .shared_bytes = 0,
          .early = true},
         on, p, each);
}

}  // namespace invar::cuda
