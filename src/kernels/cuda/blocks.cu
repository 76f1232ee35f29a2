#include "kernels/cuda/blocks.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/block_places.h"
#include "kernels/cuda/block_slabs.cuh"
#include "kernels/cuda/product_blocks.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ int64_t global_index() {
  return int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

// use<type>() for the one of all types with blocks that this is.
template <size_t kFirst = 0, typename Use>
void with_block_type(DType type, Use use) {
  if constexpr (kFirst < std::size(kStorageTypes)) {
    constexpr StorageType kStorage = kStorageTypes[kFirst];
    // Experts', which a GPU has as elements.
    if constexpr (kStorage.has_blocks() && kStorage.element == DType::bf16 &&
                  kStorage.type != DType::mxfp4)
      if (type == kStorage.type) return use.template operator()<kStorage.type>();
    with_block_type<kFirst + 1>(type, use);
  }
}

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

// A thread expands one block of a panel; `outputs` count through the units from `data` on.
__global__ void expand_panels_kernel(BlockPlaces places, const void* data, int64_t outputs,
                                     int64_t k, bf16_t* out) {
  const int64_t i = global_index(), output = i / places.row_blocks();
  if (output >= outputs) return;
  const int64_t block = i % places.row_blocks(), first = block * places.block();
  bf16_t elements[kMaxBlock];
  places.read(data, output, block, elements);
  for (int e = 0; e < places.block(); ++e)
    out[packed_index_bf16(output, first + e, k)] = elements[e];
}

// Four threads expand a unit of 32 elements of a row, whose blocks follow each other.
struct BlockRows {
  const uint8_t* data;
  int64_t unit_bytes, scales_at, stride;  // the last one in elements, of what is written
  unsigned outputs, units;                // of a row
};
template <DType type>
__global__ void expand_rows_kernel(const BlockRows rows, bf16_t* out) {
  using Shape = SlabShape<type>;
  const auto i = static_cast<unsigned>(global_index());
  const unsigned j = i % 4, unit = i / 4 % rows.units, output = i / 4 / rows.units;
  if (output >= rows.outputs) return;
  const unsigned slab = unit / (kSlab / kSlabUnit);
  const uint8_t* row = rows.data + output * rows.unit_bytes;
  const SlabBytes at{row + slab * Shape::kValues, row + rows.scales_at + slab * Shape::kScales,
                     static_cast<int>(j)};
  SlabEights elements;
  Slab<type, SlabBytes>(at).unit(static_cast<int>(unit % (kSlab / kSlabUnit)), elements);
  bf16_t* to = out + output * rows.stride + unit * kSlabUnit + j * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    *reinterpret_cast<uint2*>(to + 16 * half) = {elements[half][0], elements[half][1]};
}

void expand_rows(const Matrix& w, const char* from, int64_t outputs, bf16_t* to,
                 const Execution& on) {
  const int64_t units = w.k / kSlabUnit;
  const BlockRows rows{.data = reinterpret_cast<const uint8_t*>(from),
                       .unit_bytes = w.unit_bytes(),
                       .scales_at = w.scales_at(),
                       .stride = w.row_elements(),
                       .outputs = static_cast<unsigned>(outputs),
                       .units = static_cast<unsigned>(units)};
  const auto launch = [&]<DType type>() {
    expand_rows_kernel<type>
        <<<blocks_for(outputs * units * 4), kThreads, 0, stream_of(on)>>>(rows, to);
  };
  with_block_type(w.type, launch);
}

__global__ void embed_blocks_kernel(BlockPlaces places, EmbedParams p) {
  const int64_t i = global_index(), blocks = p.table.k / places.block(), row = i / blocks;
  if (row >= p.rows) return;
  bf16_t elements[kMaxBlock];
  places.read(p.table.data, p.tokens[row], i % blocks, elements);
  float* out = p.out + i * places.block();
  for (int e = 0; e < places.block(); ++e)
    out[e] = (bf16_to_f32(elements[e]) + 0.0f) * p.scale;  // + 0: flushes subnormals
}

}  // namespace

int64_t outputs_at_once(const Matrix& w, int64_t rows) {
  // As many as the cache holds until they are read, if that is a tile, or as give every
  // multiprocessor some tiles.
  constexpr int64_t kTile = 128, kInCache = int64_t{24} << 20, kTiles = 2 * 132;
  const int64_t row_tiles = (rows + kTile - 1) / kTile;
  const int64_t busy = (kTiles + row_tiles - 1) / row_tiles / w.count * kTile;
  const int64_t row = w.count * w.row_elements() * static_cast<int64_t>(sizeof(bf16_t));
  const int64_t most = static_cast<int64_t>(kBlocksScratch) / row / kTile * kTile;
  CHECK(most > 0, "rows of blocks too long for the scratch memory");
  return std::min({most, std::max({kTile, busy, kInCache / row / kTile * kTile}), w.n});
}

Matrix expand(const Matrix& w, int64_t first, int64_t count, void* scratch, const Execution& on) {
  CHECK(scratch, "products of blocks need scratch memory");
  Matrix out = w;
  out.type = DType::bf16;
  out.data = scratch;
  out.n = count;
  const bool panels = w.layout == WeightLayout::panels;
  // The panels of a stack take turns, its rows follow each other.
  const int64_t runs = panels ? 1 : w.count, units = (panels ? w.count : 1) * out.units();
  const int64_t begin = panels ? first / kPanelWidth * w.count : first;
  for (int64_t i = 0; i < runs; ++i) {
    const char* from = static_cast<const char*>(w.data) + (i * w.units() + begin) * w.unit_bytes();
    bf16_t* to = static_cast<bf16_t*>(scratch) + i * units * out.unit_bytes() / 2;
    const int64_t outputs = units * w.unit_outputs();
    if (panels)
      expand_panels_kernel<<<blocks_for(outputs * w.row_blocks()), kThreads, 0, stream_of(on)>>>(
          BlockPlaces(w), from, outputs, w.k, to);
    else
      expand_rows(w, from, outputs, to, on);
    cuda_launched("expanding blocks");
  }
  return out;
}

bool reads_blocks(const Matrix& w, int64_t rows, int runs) {
  const StorageType& storage = storage_of(w.type);
  const int64_t run = w.k / runs, blocks = run / storage.block;
  if (w.layout != WeightLayout::rows || rows > kMostRowsOfBlocks || run % storage.block != 0)
    return false;
  // TMA begins at multiples of 16 bytes; scales of some types are taken out of what lies around.
  const auto is_aligned = [](int64_t bytes) { return bytes % 16 == 0; };
  const bool takes_any = !is_aligned(kSlab / storage.block * storage.scale_bytes);
  if (!is_aligned(w.scales_at())) return false;
  return runs == 1 || (is_aligned(blocks * storage.value_bytes) &&
                       (takes_any || is_aligned(blocks * storage.scale_bytes)));
}

void matmul_by_blocks(const MatmulParams& p, const Execution& on) {
  with_block_type(p.w.type, [&]<DType type>() {
    if (p.rows <= kFewRowsOfBlocks) return few_blocks_matmul<type>(p, on, {});
    if (p.split_k == 1) return wide_blocks_matmul<type>(p, on);
    for (int64_t first = 0; first < p.rows; first += kRowsOfRuns) {
      MatmulParams part = p;
      part.x = p.x.from(first);
      part.y = p.y + first * p.y_stride;
      part.rows = std::min(int64_t{kRowsOfRuns}, p.rows - first);
      few_blocks_matmul<type>(part, on, {});
    }
  });
}

void gated_matmul_by_blocks(const GatedMatmulParams& p, const Execution& on) {
  with_block_type(p.gate_up.type, [&]<DType type>() {
    p.rows <= kFewRowsOfBlocks ? few_blocks_gated<type>(p, on, {}) : wide_blocks_gated<type>(p, on);
  });
}

bool blocks_norm(const Matrix& w, const Execution& on) {
  return reads_blocks(w, 1, 1) && few_blocks_norm(w, on);
}
void normed_matmul_by_blocks(const MatmulParams& p, const RowNorm& norm, const Execution& on) {
  with_block_type(p.w.type, [&]<DType type>() { few_blocks_matmul<type>(p, on, norm); });
}
void normed_gated_by_blocks(const GatedMatmulParams& p, const RowNorm& norm, const Execution& on) {
  with_block_type(p.gate_up.type, [&]<DType type>() { few_blocks_gated<type>(p, on, norm); });
}

void embed_blocks(const EmbedParams& p, const Execution& on) {
  const BlockPlaces places(p.table);
  embed_blocks_kernel<<<blocks_for(p.rows * p.table.k / places.block()), kThreads, 0,
                        stream_of(on)>>>(places, p);
  cuda_launched("embed");
}

}  // namespace invar::cuda
