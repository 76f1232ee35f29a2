// Long runs of recurrent layers, chunk by chunk (recurrent_pieces.cuh): a block has 32 elements of
// the values of a head of a sequence. Four warps make values, each those of a stretch, one after
// the other; four keep the state in registers, and make outputs. So what one stretch waits for is
// as little as the definition allows: the values of the stretch before, and a step.
#include "base/check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/aligned.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/early_grid.cuh"
#include "kernels/cuda/recurrent_keeper.cuh"
#include "kernels/cuda/recurrent_makers.cuh"
#include "kernels/cuda/torch_operators.h"

namespace invar::cuda {

namespace {

using namespace carry;

constexpr int kPiecesAhead = 3;  // that are brought into the L2 cache

// All threads of a block: the sum of what they give.
__device__ int sum_of_block(int mine) {
  __shared__ int of_warp[kCarryThreads / kWarp];
  mine = __reduce_add_sync(kAllLanes, mine);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = mine;
  __syncthreads();
  int sum = 0;
#pragma unroll 1
  for (int w = 0; w < kCarryThreads / kWarp; ++w) sum += of_warp[w];
  return sum;
}

// A block's share of what the blocks of a head will read.
__device__ void prefetch_share(const PieceWeights& weights, int slice, int slices) {
  constexpr int kLine = 128, kLines = sizeof(PieceWeights) / kLine;
  const int first = kLines * slice / slices, end = kLines * (slice + 1) / slices;
  prefetch_bytes(reinterpret_cast<const char*>(&weights) + first * kLine,
                 static_cast<uint32_t>((end - first) * kLine));
}

template <typename Maker>
__global__ __launch_bounds__(kCarryThreads,
                             1) void carry_states_kernel(const __grid_constant__ RecurrenceParams p,
                                                         const __grid_constant__ PieceRange range) {
  __shared__ Shared shared;
  take_turn();
  const int slices = p.layer.value_size / kPieceValues;
  const int slice = static_cast<int>(blockIdx.x) % slices;
  const int head = static_cast<int>(blockIdx.x) / slices % p.layer.heads;
  const int sequence = static_cast<int>(blockIdx.x) / slices / p.layer.heads;
  const SequenceRows rows(p, sequence);
  const int pieces = rows.pieces();
  if (pieces == 0) return;
  int before = 0;  // pieces of the sequences before this one
  for (int i = threadIdx.x; i < sequence; i += kCarryThreads) before += SequenceRows(p, i).pieces();
  before = sum_of_block(before);
  const int begin = before < range.first ? range.first - before : 0;
  const int after = range.first + range.count - before;
  const int end = after < pieces ? after : pieces;
  if (begin >= end) return;

  const auto weights = [&](int number) -> const PieceWeights& {
    return range.weights[(before + number - range.first) * p.layer.heads + head];
  };
  Piece piece = rows.piece(begin);
  const bf16_t* kept =
      p.layer.values.at<bf16_t>(p.places.cell_of(piece.begin, p.places.positions[piece.begin])) +
      head * p.layer.value_elements() + slice * kPieceValues;
  // Slots behind a piece's rows are multiplied by zeros, so that they have to be finite.
  for (int at = threadIdx.x; at < kChunkSlots * kPieceValues; at += kCarryThreads) {
    const int slot = at / kPieceValues, e = at % kPieceValues;
    shared.u[e * kUStride + slot] =
        slot < piece.slot ? kept[value_index(p.layer, slot, e)] : bf16_t{};
  }
  if (threadIdx.x < kRole) {
    Maker maker(p, shared, head, slice * kPieceValues);
    maker.begin(piece, weights(begin));
    for (int number = begin; number < end; ++number) {
      const bool has_next = number + 1 < end;
      const Piece next = has_next ? rows.piece(number + 1) : piece;
      named_sync(kStateIsThere, kCarryThreads);
      maker.solve(piece, next, has_next ? &weights(number + 1) : nullptr);
      piece = next;
    }
  } else {
    Keeper keeper(p, shared, head, slice * kPieceValues);
    keeper.end_ = rows.end;
    keeper.begin(piece, weights(begin));
    for (int number = begin; number < end; ++number) {
      const bool has_next = number + 1 < end;
      const Piece next = has_next ? rows.piece(number + 1) : piece;
      if (threadIdx.x == kRole && number + kPiecesAhead < end)
        prefetch_share(weights(number + kPiecesAhead), slice, slices);
      keeper.keep(piece, weights(number), next, has_next ? &weights(number + 1) : nullptr);
      piece = next;
    }
  }
}

}  // namespace

void carry_states(const RecurrenceParams& p, const PieceRange& range, const Execution& on) {
  const int blocks = p.sequences * p.layer.heads * (p.layer.value_size / kPieceValues);
  const bool has_keys = p.layer.kind == Recurrence::delta;
  launch("states of a recurrence",
         has_keys ? carry_states_kernel<Solver> : carry_states_kernel<Scaler>,
         {.blocks = blocks, .threads = kCarryThreads, .shared_bytes = 0, .early = true}, on, p,
         range);
}

bool has_own_kernels(const RecurrenceParams& p) {
  const RecurrentLayer& layer = p.layer;
  return p.scratch && layer.kind != Recurrence::channel_delta && layer.key_size == kPieceKey &&
         layer.value_size % kPieceValues == 0 && p.v_stride % 2 == 0 && p.out_stride % 2 == 0 &&
         are_aligned(8, p.v, p.out);
}

// Long runs: as many pieces at a time as the scratch memory holds the weights of.
void recur_in_pieces(const RecurrenceParams& p, const Execution& on) {
  constexpr size_t kOthers = 1 << 20;  // attention's counters, which are zero between kernels
  static_assert(kOthers >= kAttentionZeros);
  const int64_t pieces = most_pieces(p.places.rows, p.sequences);
  const auto room =
      static_cast<int64_t>((kAttentionScratch - kOthers) / (sizeof(PieceWeights) * p.layer.heads));
  CHECK(room > 0, "scratch memory for the heads of a recurrent layer");
  for (int64_t first = 0; first < pieces; first += room) {
    const PieceRange range{
        static_cast<int>(first), static_cast<int>(std::min(room, pieces - first)),
        reinterpret_cast<PieceWeights*>(static_cast<std::byte*>(p.scratch) + kOthers)};
    weigh_pieces(p, range, on);
    carry_states(p, range, on);
  }
  recur_short_rows(p, on);
}

}  // namespace invar::cuda
