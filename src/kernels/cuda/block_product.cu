// Products of blocks as integers (numerics 2.3). Rows become integers once a product, in scratch
// memory. A block of threads has a panel of 16 outputs, or two of a gated pair, and unpacks 256
// columns of it at a time to shared memory, where all of its rows meet them: a thread has an output
// and the chains of some rows, so that nothing is added across threads.
#include "kernels/cuda/block_product.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/block_places.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/int8_rows.cuh"
#include "kernels/cuda/product.cuh"

namespace invar::cuda {

namespace {

constexpr int kLeaf = 32;

// ---- rows

// What 32 columns' integers come with: their scale, and the totals of each 16 of them.
struct alignas(16) LeafScale {
  float scale;
  int total[2];
};

struct IntegerRows {
  int8_t* values;     // [T][K]
  LeafScale* scales;  // [T][K / 32]
  int64_t k;

  __device__ int64_t leaves() const { return k / kLeaf; }
};
constexpr int64_t bytes_of_row(int64_t k) {
  return k + k / kLeaf * static_cast<int64_t>(sizeof(LeafScale));
}

// A thread has 32 columns.
__global__ __launch_bounds__(kThreads) void quantise_columns_kernel(Activation x, int64_t rows,
                                                                    IntegerRows out) {
  const int64_t i = thread_of_grid(), t = i / out.leaves(), leaf = i % out.leaves();
  if (t >= rows) return;
  const auto* from = reinterpret_cast<const uint4*>(static_cast<const bf16_t*>(x.data) +
                                                    t * x.stride + leaf * kLeaf);
  const uint4 eights[4] = {from[0], from[1], from[2], from[3]};
  int largest = 0;
#pragma unroll
  for (const uint4& eight : eights) largest = largest_of(largest, eight);
  const RowScale scale(largest);
  LeafScale of{scale.stored(), {0, 0}};
  uint32_t fours[8];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    fours[2 * e] = scale.four(eights[e].x, eights[e].y);
    fours[2 * e + 1] = scale.four(eights[e].z, eights[e].w);
    for (int j = 0; j < 2; ++j)
      of.total[e / 2] = __dp4a(static_cast<int>(fours[2 * e + j]), 0x01010101, of.total[e / 2]);
  }
  auto* to = reinterpret_cast<uint4*>(out.values + t * out.k + leaf * kLeaf);
  to[0] = {fours[0], fours[1], fours[2], fours[3]};
  to[1] = {fours[4], fours[5], fours[6], fours[7]};
  out.scales[i] = of;
}

IntegerRows quantised(const Activation& x, int64_t rows, int64_t k, void* scratch,
                      const Execution& on) {
  CHECK(scratch && x.type == DType::bf16, "rows of a product of blocks");
  auto* values = static_cast<int8_t*>(scratch);
  const IntegerRows out{values, reinterpret_cast<LeafScale*>(values + rows * k), k};
  quantise_columns_kernel<<<blocks_of(rows * k / kLeaf), kThreads, 0, stream_of(on)>>>(x, rows,
                                                                                       out);
  cuda_launched("rows as integers");
  return out;
}

// ---- products

constexpr int kOutputs = 16, kColumns = 256, kSlots = kThreads / kOutputs;
constexpr int kRowsOfThread = 4, kRows = kSlots * kRowsOfThread;
constexpr int kRowBytes = kColumns + 16;  // outputs in different banks
constexpr int kMostParts = kColumns / 16, kMostScaleBytes = 32;

// Columns of a panel of each matrix: bytes as a file has them, and what these stand for.
template <int kMatrices>
struct UnpackedPanel {
  uint8_t values[kMatrices][kOutputs][kColumns];
  uint8_t scales[kMatrices][kOutputs][kMostScaleBytes];
  alignas(16) int8_t integers[kMatrices][kOutputs][kRowBytes];
  BlockPart parts[kMatrices][kOutputs][kMostParts];
};

// Of which type a product's blocks are.
struct BlockForm {
  DType type;
  int block, value_bytes, scale_bytes, part;
  bool adds;
};

template <int kMatrices>
__device__ void unpack(const Product& p, const BlockPlaces& places, const BlockForm& form,
                       int64_t panel, int64_t column, int columns, UnpackedPanel<kMatrices>& out) {
  const int blocks = columns / form.block;
  for (int i = threadIdx.x; i < kMatrices * kOutputs * blocks; i += kThreads) {
    const int b = i % blocks, lane = i / blocks % kOutputs, m = i / blocks / kOutputs;
    places.read_stored(p.w, (panel * kMatrices + m) * kOutputs + lane, column / form.block + b,
                       &out.scales[m][lane][b * form.scale_bytes],
                       &out.values[m][lane][b * form.value_bytes]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kMatrices * kOutputs * columns; i += kThreads) {
    const int c = i % columns, lane = i / columns % kOutputs, m = i / columns / kOutputs;
    out.integers[m][lane][c] = static_cast<int8_t>(block_integer(
        form.type, &out.values[m][lane][c / form.block * form.value_bytes], c % form.block));
  }
  const int parts = columns / form.part, of_block = form.block / form.part;
  for (int i = threadIdx.x; i < kMatrices * kOutputs * parts; i += kThreads) {
    const int j = i % parts, lane = i / parts % kOutputs, m = i / parts / kOutputs;
    out.parts[m][lane][j] =
        block_part(form.type, &out.scales[m][lane][j / of_block * form.scale_bytes], j % of_block);
  }
  __syncthreads();
}

__device__ __forceinline__ int dot16(int4 a, int4 b) {
  return __dp4a(a.w, b.w, __dp4a(a.z, b.z, __dp4a(a.y, b.y, __dp4a(a.x, b.x, 0))));
}

// A part of a row's chain.
__device__ __forceinline__ float add_part(float acc, int sum, int total, float scale,
                                          const BlockPart& part, bool adds) {
  acc = fmaf(__int2float_rn(sum), scale * part.factor, acc);
  return adds ? fmaf(__int2float_rn(total) * scale, part.plus, acc) : acc;
}

// A leaf of an output and a row.
__device__ __forceinline__ float add_leaf(float acc, const int4 (&w)[2], const int4 (&x)[2],
                                          const LeafScale& scale, const BlockPart* parts,
                                          const BlockForm& form) {
  const int first = dot16(w[0], x[0]), second = dot16(w[1], x[1]);
  if (form.part == kLeaf)
    return add_part(acc, first + second, scale.total[0] + scale.total[1], scale.scale, parts[0],
                    form.adds);
  acc = add_part(acc, first, scale.total[0], scale.scale, parts[0], form.adds);
  return add_part(acc, second, scale.total[1], scale.scale, parts[1], form.adds);
}

template <typename End>
__global__ __launch_bounds__(kThreads) void block_product_kernel(Product p, BlockPlaces places,
                                                                 BlockForm form, IntegerRows x,
                                                                 End end) {
  constexpr int kMatrices = End::kMatrices, kChains = kRowsOfThread * kMatrices;
  __shared__ UnpackedPanel<kMatrices> panel;
  const int lane = threadIdx.x % kOutputs;
  const int64_t t0 = int64_t{blockIdx.y} * kRows + threadIdx.x / kOutputs;
  const int64_t leaves_of_run = x.leaves() / p.split_k;
  RunTree<kChains> tree;
  float chains[kChains] = {};
  int run = 0;
  for (int64_t column = 0; column < p.k; column += kColumns) {
    const int columns = static_cast<int>(min(int64_t{kColumns}, p.k - column));
    unpack<kMatrices>(p, places, form, blockIdx.x, column, columns, panel);
    for (int at = 0; at < columns; at += kLeaf) {
      const int64_t leaf = (column + at) / kLeaf;
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        const auto* weights = reinterpret_cast<const int4*>(&panel.integers[m][lane][at]);
        const int4 w[2] = {weights[0], weights[1]};
#pragma unroll
        for (int r = 0; r < kRowsOfThread; ++r) {
          const int64_t t = min(t0 + r * kSlots, p.rows - 1);
          const auto* row = reinterpret_cast<const int4*>(x.values + t * x.k + column + at);
          const int4 integers[2] = {__ldg(row), __ldg(row + 1)};
          float& chain = chains[r * kMatrices + m];
          chain = add_leaf(chain, w, integers, x.scales[t * x.leaves() + leaf],
                           &panel.parts[m][lane][at / form.part], form);
        }
      }
      if ((leaf + 1) % leaves_of_run != 0) continue;
      tree.add(run++, chains);
      if (run == p.split_k) break;
#pragma unroll
      for (float& chain : chains) chain = 0.0f;
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kRowsOfThread; ++r) {
    if (t0 + r * kSlots >= p.rows) break;
    float dots[kMatrices];
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) dots[m] = chains[r * kMatrices + m] + 0.0f;
    end(t0 + r * kSlots, int64_t{blockIdx.x} * kOutputs + lane, dots);
  }
}

template <typename Params>
void multiply(const Params& params, const Matrix& w, const Execution& on) {
  const Product p = product_of(params);
  const StorageType& storage = storage_of(w.type);
  CHECK(w.layout == WeightLayout::panels && part_size(w.type) > 0 && w.k % storage.block == 0 &&
            w.k / p.split_k % kLeaf == 0,
        "a product of whole blocks in panels");
  const BlockForm form{w.type,
                       storage.block,
                       storage.value_bytes,
                       storage.scale_bytes,
                       part_size(w.type),
                       adds_something(w.type)};
  const IntegerRows x = quantised(p.x, p.rows, p.k, params.scratch, on);
  const dim3 grid(static_cast<unsigned>(p.panels), ceil_divide(p.rows, kRows));
  const auto end = end_of(params);
  block_product_kernel<<<grid, kThreads, 0, stream_of(on)>>>(p, BlockPlaces(w), form, x, end);
  cuda_launched("a product of blocks");
}

// As many rows at a time as there is scratch memory for.
int64_t rows_at_once(int64_t k) {
  return std::max<int64_t>(static_cast<int64_t>(kBlocksScratch) / bytes_of_row(k) / kRows, 1) *
         kRows;
}

}  // namespace

void block_matmul(const MatmulParams& p, const Execution& on) {
  const int64_t most = rows_at_once(p.w.k);
  for (int64_t first = 0; first < p.rows; first += most) {
    MatmulParams part = p;
    part.x = p.x.from(first);
    part.y = p.y + first * p.y_stride;
    part.rows = std::min(most, p.rows - first);
    multiply(part, part.w, on);
  }
}

void block_gated_matmul(const GatedMatmulParams& p, const Execution& on) {
  CHECK(p.curve != Nonlinearity::gelu, "a curve of gated products");
  const int64_t most = rows_at_once(p.gate_up.k);
  for (int64_t first = 0; first < p.rows; first += most) {
    GatedMatmulParams part = p;
    part.x = p.x.from(first);
    part.out = p.out.from(first);
    part.rows = std::min(most, p.rows - first);
    multiply(part, part.gate_up, on);
  }
}

}  // namespace invar::cuda
