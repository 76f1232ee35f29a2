// Matrix products of order `hopper`: their operands as TMA reads them and the choice of a schedule.
#include <array>

#include "base/check.h"
#include "kernels/cuda/product_hopper.cuh"
#include "kernels/cuda/product_schedules.h"

namespace invar::cuda {

namespace {

constexpr uint64_t kBf16 = sizeof(bf16_t);

void check_weights(const Matrix& w) {
  CHECK(w.layout == WeightLayout::rows && w.type == DType::bf16,
        "products of order hopper take weights in rows of bf16");
}

// Rows of `inner` elements, `stride` elements apart, cut into split-K parts.
CUtensorMap rows_map(const void* data, int64_t inner, int64_t rows, int64_t stride, int split_k,
                     int box_rows, int box_parts) {
  const uint64_t run = static_cast<uint64_t>(inner / split_k);
  return tensor_map<3>(
      data, {.sizes = {run, static_cast<uint64_t>(rows), static_cast<uint64_t>(split_k)},
             .strides = {static_cast<uint64_t>(stride) * kBf16,
                         split_k == 1 ? static_cast<uint64_t>(stride) * kBf16 : run * kBf16},
             .box = {kSlice, static_cast<uint32_t>(box_rows), static_cast<uint32_t>(box_parts)}});
}

}  // namespace

ProductMaps maps_of(const MatmulParams& p, int x_rows, int w_rows, int split_k) {
  check_weights(p.w);
  return {rows_map(p.x.data, p.w.k, p.rows, p.x.stride, p.split_k, x_rows, 1),
          rows_map(p.w.data, p.w.k, p.w.n, p.w.row_elements(), p.split_k, w_rows, split_k)};
}

ProductMaps maps_of(const GatedMatmulParams& p, int x_rows, int w_rows) {
  const Matrix& w = p.gate_up;
  check_weights(w);
  const uint64_t row = static_cast<uint64_t>(w.row_elements()) * kBf16;
  const uint64_t blocks = static_cast<uint64_t>(w.all_rows()) / kBlockOutputs;
  return {
      rows_map(p.x.data, w.k, p.rows, p.x.stride, 1, x_rows, 1),
      tensor_map<4>(w.data, {.sizes = {static_cast<uint64_t>(w.k), kBlockOutputs, 2, blocks},
                             .strides = {row, blocks * kBlockOutputs * row, kBlockOutputs * row},
                             .box = {kSlice, kBlockOutputs, 2,
                                     static_cast<uint32_t>(w_rows / (2 * kBlockOutputs))}})};
}

ProductMaps expert_maps_of(const MatmulParams& p, int x_rows, int w_rows) {
  const Matrix& w = p.w;
  check_weights(w);
  const uint64_t row = static_cast<uint64_t>(w.row_elements()) * kBf16;
  return {rows_map(p.x.data, w.k, p.rows, p.x.stride, 1, x_rows, 1),
          tensor_map<3>(w.data, {.sizes = {static_cast<uint64_t>(w.k), static_cast<uint64_t>(w.n),
                                           static_cast<uint64_t>(w.count)},
                                 .strides = {row, static_cast<uint64_t>(w.all_rows()) * row},
                                 .box = {kSlice, static_cast<uint32_t>(w_rows), 1}})};
}

ProductMaps heads_maps_of(const HeadsMatmulParams& p, int x_rows, int w_rows) {
  const MatmulParams& each = p.each;
  ProductMaps maps = expert_maps_of(each, x_rows, w_rows);
  maps.x = tensor_map<3>(
      each.x.data, {.sizes = {static_cast<uint64_t>(each.w.k), static_cast<uint64_t>(each.rows),
                              static_cast<uint64_t>(each.w.count)},
                    .strides = {static_cast<uint64_t>(each.x.stride) * kBf16,
                                static_cast<uint64_t>(p.x_step) * kBf16},
                    .box = {kSlice, static_cast<uint32_t>(x_rows), 1}});
  return maps;
}

// Counted through all pairs the last up's blocks have no gate: they are not among the blocks.
ProductMaps expert_maps_of(const GatedMatmulParams& p, int x_rows, int w_rows) {
  const Matrix& w = p.gate_up;
  check_weights(w);
  const uint64_t row = static_cast<uint64_t>(w.row_elements()) * kBf16;
  const uint64_t blocks = static_cast<uint64_t>(w.all_rows()) / kBlockOutputs;
  return {
      rows_map(p.x.data, w.k, p.rows, p.x.stride, 1, x_rows, 1),
      tensor_map<4>(w.data, {.sizes = {static_cast<uint64_t>(w.k), kBlockOutputs, 2,
                                       blocks * (static_cast<uint64_t>(w.count) - 1)},
                             .strides = {row, blocks * kBlockOutputs * row, kBlockOutputs * row},
                             .box = {kSlice, kBlockOutputs, 2,
                                     static_cast<uint32_t>(w_rows / (2 * kBlockOutputs))}})};
}

PlainEnd end_of(const MatmulParams& p) {
  const int n = static_cast<int>(p.w.n);
  const auto is_in = [&](int64_t of) {
    return p.y_stride % of == 0 && reinterpret_cast<uintptr_t>(p.y) % (of * sizeof(float)) == 0;
  };
  return {.bias = p.bias,
          .accumulate = p.accumulate,
          .y = p.y,
          .stride = p.y_stride,
          .n = n,
          .padded = n,
          .in_pairs = n % 2 == 0 && is_in(2),
          .in_fours = is_in(4),
          .in_boxes = is_in(4) && n % 4 == 0};
}

GatedEnd end_of(const GatedMatmulParams& p) {
  CHECK(p.out.type == DType::bf16, "order hopper has bf16 activations");
  const int64_t n = p.gate_up.n;
  return {.gate_bias = p.gate_bias,
          .up_bias = p.up_bias,
          .out = static_cast<bf16_t*>(p.out.data),
          .stride = p.out.stride,
          .n = static_cast<int>(n),
          .padded = static_cast<int>(round_up(n, kLeafPad)),
          .curve = p.curve};
}

// ---- The table

namespace {

template <int kTokens>
bool few_rows(const ProductShape& s) {
  return s.rows <= kTokens;
}
bool one_run(const ProductShape& s) {
  return s.split_k == 1;
}
bool plain_one_run(const ProductShape& s) {
  return s.split_k == 1 && s.matrices == 1;
}
template <int kBlocks>
bool several_parts(const ProductShape& s) {
  return s.split_k > kBlocks && s.matrices == 1;
}

// Few rows go to the smallest instruction that takes them; nothing else is as fast there.
template <int kTokens>
double few_cost(const ProductShape&) {
  return kTokens / 64.0;
}
// Tiles in turns over the multiprocessors: a turn's time on an H200, in columns of a tile and
// relative to each other (docs/benchmarks.md).
template <int kColumns, int kBlocks, int kTurn, int kRows = kTileRows>
double tile_cost(const ProductShape& s) {
  const int tiles = ceil_div(s.rows, kRows) * ceil_div(s.n * s.matrices, kColumns);
  return 1.0 * kTurn * ceil_div(int64_t{tiles} * kBlocks, s.multiprocessors);
}
// From so many rows on, tiles of 128 x 128 wait for the L2 cache of an H100, which has to bring 16
// bytes for 1024 operations. Tiles of 128 x 256 and pairs of 128 x 128 want 12. On an H200 pairs
// are the faster ones by 3 to 6 %, on an H100 the wide tiles by 1.4 %.
constexpr int64_t kManyRows = 1024;
template <int kTurn>
double square_cost(const ProductShape& s) {
  return (s.rows >= kManyRows ? 1.3 : 1.0) * tile_cost<128, 1, kTurn>(s);
}
template <int kTurn>
double wide_cost(const ProductShape& s) {
  return (s.rows >= kManyRows ? 1.0 : 1.2) * tile_cost<256, 1, kTurn>(s);
}
// Pairs are slower than blocks alone until so many rows.
template <int kTurn, int64_t kFrom>
double pair_cost(const ProductShape& s) {
  const int tiles = 2 * ceil_div(s.rows, 2 * kTileRows) * ceil_div(s.n * s.matrices, 128);
  return (s.rows >= kFrom ? 0.99 : 1.01) * kTurn * ceil_div(tiles, s.multiprocessors);
}

template <int kTokens>
constexpr ProductSchedule few_schedule(const char* name) {
  return {name, few_rows<kTokens>,
          [](const MatmulParams& p, const Execution& on) {
            p.split_k == 1 ? few_matmul<kTokens>(p, on) : few_split_k_matmul<kTokens>(p, on);
          },
          few_gated<kTokens>, few_cost<kTokens>};
}

constexpr auto kSchedules = std::to_array<ProductSchedule>({
    {"thin", thin_can, thin_matmul, nullptr, [](const ProductShape&) { return 0.05; }},
    few_schedule<8>("few 8"),
    few_schedule<16>("few 16"),
    few_schedule<32>("few 32"),
    few_schedule<64>("few 64"),
    {"shared 48", plain_one_run, shared_tile_matmul<48, 2>, nullptr, tile_cost<48, 1, 85>},
    {"shared 96", one_run, shared_tile_matmul<96, 2>, shared_tile_gated<96, 2>,
     tile_cost<96, 1, 140>},
    {"shared 192", one_run, shared_tile_matmul<192, 2>, shared_tile_gated<192, 2>,
     tile_cost<192, 1, 270>},
    {"shared 192, 192 rows", one_run, shared_tile_matmul<192, 3>, shared_tile_gated<192, 3>,
     tile_cost<192, 1, 400, 192>},
    {"shared 96, 192 rows", plain_one_run, shared_tile_matmul<96, 3>, nullptr,
     tile_cost<96, 1, 205, 192>},
    {"shared 256", one_run, shared_tile_matmul<256, 2>, shared_tile_gated<256, 2>, wide_cost<380>},
    {"ping-pong 128", one_run, ping_pong_matmul<1>, ping_pong_gated<1>, square_cost<165>},
    {"ping-pong 128, pairs", one_run, ping_pong_matmul<2>, ping_pong_gated<2>,
     pair_cost<182, 1024>},
    {"tree 64", several_parts<1>, tree_matmul<64, 1>, nullptr, tile_cost<64, 1, 125>},
    {"tree 64, two blocks", several_parts<2>, tree_matmul<64, 2>, nullptr, tile_cost<64, 2, 85>},
    {"tree 96", several_parts<1>, tree_matmul<96, 1>, nullptr, tile_cost<96, 1, 163>},
    {"tree 128", several_parts<1>, tree_matmul<128, 1>, nullptr, tile_cost<128, 1, 200>},
    {"tree 128, pairs", several_parts<1>, tree_matmul<128, 1, 2>, nullptr, pair_cost<200, 2048>},
    {"tree 128, two blocks", several_parts<2>, tree_matmul<128, 2>, nullptr,
     tile_cost<128, 2, 130>},
});

}  // namespace

std::span<const ProductSchedule> hopper_product_schedules() {
  return kSchedules;
}

}  // namespace invar::cuda
