#include "kernels/cuda/blocks.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/block_places.h"

namespace invar::cuda {

namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ int64_t global_index() {
  return int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

// A thread expands one block; `outputs` count through the units from `data` on.
__global__ void expand_kernel(BlockPlaces places, const void* data, int64_t outputs, bool panels,
                              int64_t k, bf16_t* out) {
  const int64_t i = global_index(), output = i / places.row_blocks();
  if (output >= outputs) return;
  const int64_t block = i % places.row_blocks(), first = block * places.block();
  bf16_t elements[kMaxBlock];
  places.read(data, output, block, elements);
  for (int e = 0; e < places.block(); ++e)
    out[panels ? packed_index_bf16(output, first + e, k)
               : output * round_up(k, kLeafPad) + first + e] = elements[e];
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

int64_t outputs_at_once(const Matrix& w) {
  constexpr int64_t kTile = 128;
  const int64_t row = w.count * w.row_elements() * static_cast<int64_t>(sizeof(bf16_t));
  const int64_t most = static_cast<int64_t>(kBlocksScratch) / row / kTile * kTile;
  CHECK(most > 0, "rows of blocks too long for the scratch memory");
  return std::min(most, w.n);
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
    const int64_t outputs = units * w.unit_outputs(), items = outputs * w.row_blocks();
    expand_kernel<<<blocks_for(items), kThreads, 0, stream_of(on)>>>(BlockPlaces(w), from, outputs,
                                                                     panels, w.k, to);
    cuda_launched("expanding blocks");
  }
  return out;
}

void embed_blocks(const EmbedParams& p, const Execution& on) {
  const BlockPlaces places(p.table);
  embed_blocks_kernel<<<blocks_for(p.rows * p.table.k / places.block()), kThreads, 0,
                        stream_of(on)>>>(places, p);
  cuda_launched("embed");
}

}  // namespace invar::cuda
