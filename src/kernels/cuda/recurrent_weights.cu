// Weighs rows of long runs at the slots of their chunk (recurrent_pieces.cuh): a block has a
// head of a piece, a warp the rows of a stretch.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/early_grid.cuh"
#include "kernels/cuda/recurrent_pieces.cuh"
#include "kernels/cuda/recurrent_products.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kPieceThreads = kStretches * kWarp;
constexpr int kSteps = kKeySteps;

constexpr int kKeyStride = kPieceKey + 16;  // so that lanes read different banks

struct Shared {
  float sums[kChunkSlots];
  alignas(16) bf16_t keys[kChunkSlots * kKeyStride];
};

struct PieceId {
  int sequence = -1, number = 0;
};

// The piece of this number among all sequences', or no sequence. For all threads of a block.
__device__ PieceId find_piece(const RecurrenceParams& p, int number) {
  __shared__ PieceId found;
  __shared__ int of_warp[kStretches];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) found = {};
  int before = 0;
  for (int from = 0; from < p.sequences; from += kPieceThreads) {
    const int i = from + static_cast<int>(threadIdx.x);
    const int mine = i < p.sequences ? SequenceRows(p, i).pieces() : 0;
    int end = mine;
    for (int d = 1; d < kWarp; d *= 2) {
      const int other = __shfl_up_sync(kAllLanes, end, d);
      if (lane >= d) end += other;
    }
    __syncthreads();
    if (lane == kWarp - 1) of_warp[warp] = end;
    __syncthreads();
    int all = 0;
    for (int w = 0; w < kStretches; ++w) {
      if (w < warp) end += of_warp[w];
      all += of_warp[w];
    }
    end += before;
    if (number >= end - mine && number < end) found = {i, number - (end - mine)};
    before += all;
    if (before > number) break;
  }
  __syncthreads();
  return found;
}

template <bool kHasKeys>
class Weigher {
 public:
  __device__ Weigher(const RecurrenceParams& p, const Piece& piece, int head, Shared& shared,
                     PieceWeights& to)
      : p_(p),
        layer_(p.layer),
        piece_(piece),
        head_(head),
        key_head_(head / (p.layer.heads / p.layer.key_heads)),
        cell_(p.places.cell_of(piece.begin, p.places.positions[piece.begin])),
        sums_(shared.sums),
        keys_(shared.keys),
        to_(to) {}

  __device__ void weigh() {
    load_keys();
    add_decays();
    const int stretch = threadIdx.x / kWarp;
    if ((stretch + 1) * kStretchSlots > piece_.slot && stretch * kStretchSlots < piece_.seen)
      weigh_rows(stretch);
    if (piece_.ends_chunk()) fold(stretch);
  }

 private:
  __device__ float* sums(int32_t cell) const {
    return layer_.sums.template at<float>(cell) + head_ * layer_.sum_elements();
  }
  __device__ void load_keys() const {
    const uint4* from = reinterpret_cast<const uint4*>(layer_.keys.template at<bf16_t>(cell_) +
                                                       key_head_ * layer_.key_elements());
    constexpr int kFours = kPieceKey / 8;  // of 16 bytes in a row
#pragma unroll
    for (int n = 0; n < kChunkSlots * kFours / kPieceThreads; ++n) {
      const int at = n * kPieceThreads + static_cast<int>(threadIdx.x);
      *reinterpret_cast<uint4*>(keys_ + at / kFours * kKeyStride + at % kFours * 8) = from[at];
    }
  }

  // Ends with a barrier.
  __device__ void add_decays() {
    const int s = threadIdx.x;
    if (s < kChunkSlots) sums_[s] = 0.0f;
    if (s < piece_.seen)
      sums_[s] = s < piece_.slot ? sums(cell_)[s] : p_.decays[piece_.row(s) * layer_.heads + head_];
    __syncthreads();
    if (s == 0) {
      float g[kChunkSlots];
#pragma unroll
      for (int i = 0; i < kChunkSlots; ++i) g[i] = sums_[i];
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kChunkSlots; ++i) {
        sum = piece_.has(i) ? sum + g[i] : g[i];
        sums_[i] = sum;
      }
    }
    __syncthreads();
    if (s >= kChunkSlots) return;
    to_.decay[s] = s < piece_.seen ? math::exp(sums_[s]) : 0.0f;
    if (!piece_.has(s)) return;
    const int64_t t = piece_.row(s);
#pragma unroll 1
    for (int w = p_.places.write_begin[t]; w < p_.places.write_begin[t + 1]; ++w)
      sums(p_.places.write_cell[w])[s] = sums_[s];
  }

  __device__ void weigh_rows(int stretch) {
    const int lane = threadIdx.x % kWarp, i = lane / 4, j = lane % 4;
    StepOutputs q[kSteps], k[kSteps];
    const int slot = stretch * kStretchSlots + 2 * i;  // of the lane's first row
    load_rows(layer_, p_.q, key_head_, piece_, slot, q);
    if (kHasKeys) load_rows(layer_, p_.k, key_head_, piece_, slot, k);
    for (int slots = 0; slots <= stretch; ++slots) {
      uint32_t of_queries[4], of_keys[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int tile = slots * kStretchSlots + half * 8;
        const uint32_t* row = reinterpret_cast<const uint32_t*>(keys_ + (tile + i) * kKeyStride);
        float with_q[4] = {}, with_k[4] = {};
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const StepRows key = load_row(row, s, lane);
          step(with_q, q[s], key);
          if (kHasKeys) step(with_k, k[s], key);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int m = stretch * kStretchSlots + 2 * i + r;
          float wq[2], wk[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int s = tile + 2 * j + c;
            const bool sees = s <= m && piece_.has(m);
            const float decay = sees ? math::exp(sums_[m] - sums_[s]) : 0.0f;
            wq[c] = sees ? decay * (with_q[2 * r + c] + 0.0f) : 0.0f;
            wk[c] = sees ? decay * (with_k[2 * r + c] + 0.0f) : 0.0f;
            if (kHasKeys && slots == stretch)
              to_.own[stretch][half * 8 + 2 * j + c][2 * i + r] = wk[c];
          }
          of_queries[2 * half + r] = pack_bf16(wq[0], wq[1]);
          of_keys[2 * half + r] = pack_bf16(wk[0], wk[1]);
        }
      }
      to_.of_queries[PieceWeights::query_block(stretch, slots)][lane] = {
          of_queries[0], of_queries[1], of_queries[2], of_queries[3]};
      if (kHasKeys && slots < stretch)
        to_.of_keys[PieceWeights::key_block(stretch, slots)][lane] = {of_keys[0], of_keys[1],
                                                                      of_keys[2], of_keys[3]};
    }
  }

  // Keys of the slots of a stretch, decayed as far as the boundary, with elements as rows.
  __device__ void fold(int stretch) {
    const int lane = threadIdx.x % kWarp, i = lane / 4, j = lane % 4;
    const float last = sums_[kChunkSlots - 1];
    float decays[4];
    const bf16_t* rows[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int s = stretch * kStretchSlots + n / 2 * 8 + 2 * j + n % 2;
      decays[n] = math::exp(last - sums_[s]);
      rows[n] = keys_ + s * kKeyStride + 2 * i;
    }
#pragma unroll
    for (int tile = 0; tile < kPieceKey / 16; ++tile) {
      float y[4][2];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint32_t two = *reinterpret_cast<const uint32_t*>(rows[n] + tile * 16);
        y[n][0] = __uint_as_float(two << 16) * decays[n];
        y[n][1] = __uint_as_float(two & 0xffff0000) * decays[n];
      }
      to_.folded[tile][stretch][lane] = {pack_bf16(y[0][0], y[1][0]), pack_bf16(y[0][1], y[1][1]),
                                         pack_bf16(y[2][0], y[3][0]), pack_bf16(y[2][1], y[3][1])};
    }
  }

  const RecurrenceParams& p_;
  const RecurrentLayer& layer_;
  const Piece piece_;
  const int head_, key_head_;
  const int32_t cell_;
  float* sums_;
  bf16_t* keys_;  // of all slots, [slot][kKeyStride]
  PieceWeights& to_;
};

template <bool kHasKeys>
__global__ __launch_bounds__(kPieceThreads) void weigh_pieces_kernel(
    const __grid_constant__ RecurrenceParams p, const __grid_constant__ PieceRange range) {
  __shared__ Shared shared;
  take_turn();
  const int head = static_cast<int>(blockIdx.x) % p.layer.heads;
  const int number = static_cast<int>(blockIdx.x) / p.layer.heads;
  const PieceId id = find_piece(p, range.first + number);
  if (id.sequence < 0) return;
  Weigher<kHasKeys>(p, SequenceRows(p, id.sequence).piece(id.number), head, shared,
                    range.weights[number * p.layer.heads + head])
      .weigh();
}

}  // namespace

void weigh_pieces(const RecurrenceParams& p, const PieceRange& range, const Execution& on) {
  const bool has_keys = p.layer.kind == Recurrence::delta;
  launch("weights of a recurrence",
         has_keys ? weigh_pieces_kernel<true> : weigh_pieces_kernel<false>,
         {.blocks = range.count * p.layer.heads,
          .threads = kPieceThreads,
          .shared_bytes = 0,
          .early = true},
         on, p, range);
}

}  // namespace invar::cuda
